"""Changes of a table, as Creek's own client has them."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from tailrace.client.creek.session import content
from tailrace.client.iteration import Iteration
from tailrace.client.readers import Ordered, Start
from tailrace.client.replica import reaches_back
from tailrace.encode.creek.schema import MARK
from tailrace.errors import ConfigError, MalformedError, PositionLostError
from tailrace.position import Lsn

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from tailrace.client.creek.avro import Event
    from tailrace.client.creek.session import Session
    from tailrace.client.names import Table
    from tailrace.client.readers import Arrival

    Beginning = tuple[datetime, str] | int | None

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a change comes from."""

    name: str
    tx_at: datetime
    """When it was committed."""
    db: str
    schema: str
    table: str
    tx_id: int
    last_lsn: str
    lsn: str
    """Of the commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wal:
    """One change.

    `op` is `c`, `u`, `u_pk` (an update that changed the key), `d`, `t` (the table was emptied) or
    `r` (a row that is read again). `before` is the old key, or the old row under REPLICA IDENTITY
    FULL; None for `c`. `after` is the new row; None for `d` and `t`. Columns in `unchanged` are
    large values that an update left alone: they are None in `after`, and keep what they had.
    """

    fingerprint: str
    source: Source
    op: str
    sent_at: datetime
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    unchanged: tuple[str, ...] = ()
    place: int
    """Its number in the stream; the stream goes on behind it with `start=place`."""


class StreamWal(Iteration[Wal, Wal]):
    """The changes of one table, in the stream's order. It does not end."""

    def __init__(self, session: Session, database: str, table: Table, start: Beginning) -> None:
        super().__init__(session.shared)
        self._session = session
        self._database = database
        self._table = table
        self._start, self._after = _beginning(start)

    def _handed(self, item: Wal) -> Wal:
        return item

    async def _batches(self) -> AsyncGenerator[list[Wal]]:
        reader = await self._reader()
        messages = Messages(self._session, self._database, self._table)
        try:
            while True:
                found = [await messages.wal(each) for each in await reader.next()]
                yield self._behind(found)
        finally:
            await reader.close()

    async def _reader(self) -> Ordered:
        session, stream = self._session, self._session.stream("wal")
        since = self._start.time
        if since is not None:
            info = await session.connection.stream_info(stream)
            if not reaches_back(info, since, datetime.now(UTC)):
                raise PositionLostError(
                    f"stream {stream} no longer has all changes since {since.isoformat()}",
                    hint="Take a new snapshot, and let the stream keep messages for longer.",
                )
        where = session.subject(self._database, "wal", self._table)
        reader = Ordered(session.connection, stream, where, start=self._start)
        await reader.open()
        return reader

    def _behind(self, found: list[Wal]) -> list[Wal]:
        """Without those at the beginning that are known already."""
        if self._after is None:
            return found
        for at, wal in enumerate(found):
            if Lsn.parse(wal.source.lsn) > self._after:
                self._after = None
                return found[at:]
        return []


def _beginning(start: Beginning) -> tuple[Start, Lsn | None]:
    match start:
        case None:
            return Start(), None
        case int():
            return Start(sequence=start + 1), None
        case (datetime() as since, str() as lsn):
            if since.tzinfo is None:
                raise ConfigError(f"{since} says no time zone", hint="Use datetime.now(UTC).")
            try:
                return Start(time=since), Lsn.parse(lsn)
            except ValueError as error:
                raise ConfigError(str(error)) from error
        case _:
            raise ConfigError(
                f"cannot start at {start!r}",
                hint="Use None, a time with an LSN, or the place of a change.",
            )


class Messages:
    """Messages of one table's changes, read by the schemas they name."""

    def __init__(self, session: Session, database: str, table: Table) -> None:
        self._session = session
        self._database = database
        self._table = table

    async def opened(self, arrival: Arrival) -> tuple[str, Event, bytes]:
        """A message's fingerprint, its schema, and what is to be read by it."""
        fingerprint, body = parted(content(arrival.data))
        event = await self._session.event(fingerprint, self._database, self._table)
        return fingerprint, event, body

    async def wal(self, arrival: Arrival) -> Wal:
        """A message as a change."""
        fingerprint, event, body = await self.opened(arrival)
        message = event.message(body, "python")
        try:
            return Wal(
                fingerprint=fingerprint,
                source=_source(message["source"]),
                op=message["op"],
                sent_at=moment(message["sent_at"]),
                before=message["before"],
                after=message["after"],
                unchanged=tuple(message.get("unchanged", ())),
                place=arrival.sequence,
            )
        except (KeyError, TypeError) as error:
            raise MalformedError(f"a message is not a change of Creek's: {error!r}") from error


def _source(message: dict[str, Any]) -> Source:
    return Source(**message | {"tx_at": moment(message["tx_at"])})


def parted(data: bytes) -> tuple[str, bytes]:
    """The fingerprint of the schema a change is written with, and the rest."""
    if len(data) < 10 or data[:2] != MARK:
        raise MalformedError("a message is not an Avro object with its schema's fingerprint")
    return base64.urlsafe_b64encode(data[2:10]).decode(), data[10:]


def moment(micros: int) -> datetime:
    """A time that a producer has written."""
    try:
        return _EPOCH + timedelta(microseconds=micros)
    except OverflowError as error:
        raise MalformedError(f"{micros} is not a time") from error
