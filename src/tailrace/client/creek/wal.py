"""Changes of a table, as Creek's own client has them."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from tailrace.client.creek.packets import Assembler
from tailrace.client.iteration import PlainIteration
from tailrace.client.readers.ordered import OrderedReader
from tailrace.client.readers.reader import Start
from tailrace.client.replica import retains_since
from tailrace.encode.creek.schema import MARK
from tailrace.errors import ConfigError, MalformedError, PositionLostError
from tailrace.position import Lsn

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from tailrace.client.creek.avro import ChangeSchema
    from tailrace.client.creek.session import Session
    from tailrace.client.names import Table
    from tailrace.client.readers.reader import StreamMessage

    WalStart = tuple[datetime, str] | int | None

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class WalSource:
    """The origin of a change."""

    name: str
    tx_at: datetime
    """Time of the commit."""
    db: str
    schema: str
    table: str
    tx_id: int
    lsn: str
    """LSN of the commit."""
    last_lsn: str = ""
    """LSN of the table's previous transaction. Empty: today's Creek does not send it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wal:
    """One change.

    `op` is `c`, `u`, `u_pk` (an update that changed the key), `d`, `t` (TRUNCATE) or `r` (a row
    of a backfill). `before` is the old key, or the old row under REPLICA IDENTITY FULL; None for
    `c`. `after` is the new row; None for `d` and `t`. `unchanged` names large (TOASTed) columns
    that an update did not touch: they are None in `after`, and keep their values.
    """

    fingerprint: str
    source: WalSource
    op: str
    sent_at: datetime
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    unchanged: tuple[str, ...] = ()
    place: int
    """Sequence in the stream. `start=place` resumes after this change."""


class StreamWal(PlainIteration[Wal]):
    """The changes of one table, in the stream's order. It does not end."""

    def __init__(self, session: Session, database: str, table: Table, start: WalStart) -> None:
        super().__init__(session.shared)
        self._session = session
        self._database = database
        self._table = table
        self._start, self._skip_until = _resolve_start(start)

    async def _batches(self) -> AsyncGenerator[list[Wal]]:
        reader = await self._open_reader()
        decoder = WalDecoder(self._session, self._database, self._table)
        packets = Assembler()
        try:
            while True:
                messages = packets.join(await reader.next())
                changes = [await decoder.wal(message) for message in messages]
                yield self._without_skipped(changes)
        finally:
            await reader.close()

    async def _open_reader(self) -> OrderedReader:
        session = self._session
        stream = session.names(self._database).stream("wal")
        since = self._start.time
        if since is not None:
            info = await session.connection.stream_info(stream)
            if not retains_since(info, since):
                raise PositionLostError(
                    f"stream {stream} no longer has all changes since {since.isoformat()}",
                    hint="Take a new snapshot, and raise the retention of the stream.",
                )
        subject = session.subject(self._database, "wal", self._table)
        reader = OrderedReader(session.connection, stream, subject, start=self._start)
        await reader.open()
        return reader

    def _without_skipped(self, changes: list[Wal]) -> list[Wal]:
        """The changes from the first one after the start LSN on; after it nothing is skipped."""
        if self._skip_until is None:
            return changes
        for index, wal in enumerate(changes):
            if Lsn.parse(wal.source.lsn) > self._skip_until:
                self._skip_until = None
                return changes[index:]
        return []


def _resolve_start(start: WalStart) -> tuple[Start, Lsn | None]:
    """Where to read from, and up to which LSN to skip."""
    match start:
        case None:
            return Start(), None
        case int():
            return Start(sequence=start + 1), None
        case (datetime() as since, str() as lsn):
            if since.tzinfo is None:
                raise ConfigError(
                    f"start must have a time zone, got {since}", hint="Use datetime.now(UTC)."
                )
            try:
                return Start(time=since), Lsn.parse(lsn)
            except ValueError as error:
                raise ConfigError(str(error)) from error
        case _:
            raise ConfigError(
                f"invalid start position {start!r}",
                hint="Use None, a time with an LSN, or the place of a change.",
            )


class WalDecoder:
    """Decodes the changes of one table, each by the schema that it names."""

    def __init__(self, session: Session, database: str, table: Table) -> None:
        self._session = session
        self._database = database
        self._table = table

    async def split(self, message: StreamMessage) -> tuple[str, ChangeSchema, bytes]:
        """The fingerprint of a whole message, its schema, and the Avro bytes."""
        fingerprint, body = split_fingerprint(message.data)
        schema = await self._session.change_schema(fingerprint, self._database, self._table)
        return fingerprint, schema, body

    async def wal(self, message: StreamMessage) -> Wal:
        """The change in a message."""
        fingerprint, schema, body = await self.split(message)
        content = schema.decode(body, "python")
        try:
            return Wal(
                fingerprint=fingerprint,
                source=_source(content["source"]),
                op=content["op"],
                sent_at=timestamp(content["sent_at"]),
                before=content["before"],
                after=content["after"],
                unchanged=tuple(content.get("unchanged", ())),
                place=message.sequence,
            )
        except (KeyError, TypeError) as error:
            raise MalformedError(f"a message is not a change of Creek: {error!r}") from error


def _source(content: dict[str, Any]) -> WalSource:
    return WalSource(**content | {"tx_at": timestamp(content["tx_at"])})


def split_fingerprint(data: bytes) -> tuple[str, bytes]:
    """The fingerprint of the schema of an Avro object, and the object's bytes."""
    if len(data) < 10 or data[:2] != MARK:
        raise MalformedError("a message is not an Avro object with the fingerprint of its schema")
    return base64.urlsafe_b64encode(data[2:10]).decode(), data[10:]


def timestamp(micros: int) -> datetime:
    """A timestamp of a producer, in microseconds since 1970."""
    try:
        return _EPOCH + timedelta(microseconds=micros)
    except OverflowError as error:
        raise MalformedError(f"{micros} is not a valid timestamp") from error
