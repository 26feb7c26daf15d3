"""The rows of a table at one point in time: a header, one message per row and an end, on one topic.

Rows are delivered while the producer still reads them. A snapshot that fails ends with an error.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

import orjson

from tailrace.client.creek.avro import RowSchema
from tailrace.client.creek.packets import Assembler
from tailrace.client.creek.session import parse_object, raise_if_refused
from tailrace.client.iteration import PlainIteration
from tailrace.client.readers.ordered import OrderedReader
from tailrace.client.readers.reader import Start
from tailrace.client.readers.timed import TimedReader
from tailrace.encode.creek.schema import END, unpacked
from tailrace.errors import (
    ConfigError,
    MalformedError,
    PositionLostError,
    SinkRefusedError,
    SinkUnreachableError,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from tailrace.client.creek.session import Session
    from tailrace.client.names import Table
    from tailrace.client.readers.reader import StreamMessage

_BATCH = 2000
_FAILED = "Tailrace-Error"
# Only for tables whose rows can have the bytes of the end.
_AFTER_END_S = 3.0
"""How long to wait for more rows after a message that may be a row or the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotHeader:
    """The first message of a snapshot."""

    fingerprint: str
    schema: str
    """The Avro schema of the rows, as JSON."""
    tx_id: int
    lsn: str
    """Changes that are not in the snapshot were committed after this LSN."""
    at: datetime
    """The stream has stored every change that is not in the snapshot since this time."""
    approx_rows: int
    topic: str
    snapshot_lsn: str | None = None
    """Everything in the snapshot was committed before this LSN. None: not in the header."""
    visibility: str | None = None
    """The transactions that the snapshot sees, as in PostgreSQL. None: not in the header."""
    since: datetime | None = None
    """Changes that are not in the snapshot were committed after this time. None: unknown."""
    taken_at: datetime | None = None
    """When the snapshot was taken. None: not in the header."""
    pipeline: str = ""
    """The pipeline that delivers the table's changes. Empty: not in the header."""

    @classmethod
    def of(cls, topic: str, data: bytes) -> Self:
        """Read the first message of a topic."""
        header = parse_object(data, "the header of a snapshot")
        try:
            since, taken_at = header.get("since"), header.get("taken_at")
            return cls(
                fingerprint=str(header["fingerprint"]),
                schema=str(header["schema"]),
                tx_id=int(header["tx_id"]),
                lsn=str(header["lsn"]),
                at=datetime.fromisoformat(header["at"]),
                approx_rows=int(header["approx_rows"]),
                topic=topic,
                snapshot_lsn=header.get("snapshot_lsn"),
                visibility=header.get("visibility"),
                since=datetime.fromisoformat(since) if since else None,
                taken_at=datetime.fromisoformat(taken_at) if taken_at else None,
                pipeline=str(header.get("pipeline", "")),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise MalformedError(f"the header of a snapshot is invalid: {error!r}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotTopic:
    """A snapshot in the stream. The producer may still be writing it."""

    topic: str
    at: datetime
    """When it was requested."""
    messages: int
    """Number of messages, header and end included."""


class SnapshotFailedError(SinkRefusedError):
    """A snapshot that was started and will never be complete."""


class SnapshotReader:
    """Reads the messages of one snapshot.

    While no message comes, the reader repeats the request with `request`, if it has one. A producer
    that still works on the snapshot answers with the same topic: it may be waiting for transactions
    that write to the table.
    """

    def __init__(
        self,
        session: Session,
        topic: str,
        request: Callable[[], Awaitable[str]] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session = session
        self._request = request
        self._clock = clock
        self._packets = Assembler()
        self._ended = False
        self._ambiguous = False
        """Whether a row may have the bytes of the end: three small integers can, for example."""
        self.topic = topic
        self.header: SnapshotHeader | None = None
        self.schema: RowSchema | None = None

    async def batches(self) -> AsyncGenerator[list[bytes]]:
        """Encoded rows as they arrive. Header and schema are set with the first batch."""
        stream = self._session.snapshot_stream(self.topic)
        reader = OrderedReader(
            self._session.connection, stream, self.topic, start=Start(), batch=_BATCH
        )
        timed = TimedReader(reader)
        try:
            while not self._ended or self._ambiguous:
                messages = await self._next(timed)
                if not messages:
                    return
                rows = self._rows(messages)
                if self.schema is not None:
                    yield rows
        finally:
            await timed.close()

    async def _next(self, timed: TimedReader) -> list[StreamMessage]:
        """The next messages. An empty list: the message that may have been the end was the end."""
        timeout_s = _AFTER_END_S if self._ended else self._session.patience_s
        while True:
            deadline = self._clock() + timeout_s
            while (left_s := deadline - self._clock()) > 0:
                if messages := await timed.next(left_s):
                    return messages
            if self._ended:
                return []
            await self._repeat_request(timeout_s)

    async def _repeat_request(self, timeout_s: float) -> None:
        """Raise unless the producer still works on this snapshot."""
        if self._request is None:
            raise SinkUnreachableError(
                f"snapshot {self.topic} has sent no rows for {timeout_s:g} s",
                hint="Check that the producer is running, and request a new snapshot.",
            )
        if (other := await self._request()) != self.topic:
            raise SnapshotFailedError(
                f"snapshot {self.topic} was abandoned, the producer now takes {other}",
                hint="Request a new snapshot.",
            )

    def _rows(self, messages: list[StreamMessage]) -> list[bytes]:
        """The encoded rows among messages, up to the end."""
        rows = []
        for message in messages:
            if _FAILED in message.headers:
                raise _failure(self.topic, message.headers[_FAILED], message.data)
            data = self._packets.add(message.data)
            if data is None:
                continue
            if self.schema is None:
                self._read_header(data)
                continue
            if self._ended:
                # Another message follows, so the one before was a row.
                rows.append(END)
            self._ended = data == END
            if not self._ended:
                rows.append(data)
            elif not self._ambiguous:
                break
        return rows

    def _read_header(self, data: bytes) -> None:
        if not data.startswith(b"{"):
            raise PositionLostError(
                f"the beginning of snapshot {self.topic} is no longer in the stream",
                hint="Request a new snapshot, and raise the retention of the stream.",
            )
        self.header = SnapshotHeader.of(self.topic, data)
        self.schema = RowSchema(self.header.schema)
        self._ambiguous = self.schema.can_decode(END)


def _failure(topic: str, reason: str, data: bytes) -> SnapshotFailedError:
    hint = ""
    # Earlier releases sent it as a packet.
    data = unpacked(data) or data
    with contextlib.suppress(MalformedError):
        failure = parse_object(data, "a failure")
        reason, hint = str(failure.get("error", reason)), str(failure.get("hint", ""))
    return SnapshotFailedError(
        f"snapshot {topic} failed: {reason}", hint=hint or "Request a new snapshot."
    )


class Snapshot(PlainIteration[dict[str, Any]]):
    """The rows of one table. `header` and `keys` are set from the first row on."""

    def __init__(
        self, session: Session, *, table: tuple[str, Table] | None = None, topic: str = ""
    ) -> None:
        super().__init__(session.shared)
        self._session = session
        self._table = table
        self._topic = topic
        self.header: SnapshotHeader | None = None
        self.keys: tuple[str, ...] = ()
        """Columns of the replica identity."""

    async def begun(self) -> SnapshotHeader:
        """Wait for the header."""
        while self.header is None:
            self._ready.extend(await self._next())
        return self.header

    async def _batches(self) -> AsyncGenerator[list[dict[str, Any]]]:
        reader = await self._open_reader()
        async with contextlib.aclosing(reader.batches()) as batches:
            async for batch in batches:
                assert reader.schema is not None
                schema = reader.schema
                self.header = reader.header
                self.keys = tuple(field.column for field in schema.record.fields if field.key)
                yield [schema.decode(row, "python") for row in batch]

    async def _open_reader(self) -> SnapshotReader:
        if self._table is not None:
            return await request_snapshot(self._session, *self._table)
        stream = self._session.snapshot_stream(self._topic)
        if await self._session.connection.message(stream, 1, self._topic) is None:
            raise ConfigError(
                f"there is no snapshot {self._topic!r}",
                hint="creek.list_snapshots() lists the snapshots in the stream.",
            )
        return SnapshotReader(self._session, self._topic)


async def request_snapshot(session: Session, database: str, table: Table) -> SnapshotReader:
    """Request a snapshot of a table."""
    names = session.names(database)
    root = names.stream("snap") if names.database else names.namespace

    async def request() -> str:
        body = {"database": database, "namespace": table.schema, "table": table.name}
        reply = await session.request(names.snapshot_request, orjson.dumps(body))
        raise_if_refused(reply)
        topic = reply.data.decode(errors="replace")
        if not topic.startswith(f"{root}."):
            raise SinkRefusedError(
                f"a producer must answer a snapshot request for {table} with a topic, "
                f"got {topic[:200]!r}"
            )
        return topic

    return SnapshotReader(session, await request(), request)


async def list_snapshots(session: Session, database: str, table: Table) -> list[SnapshotTopic]:
    """The snapshots of a table in the stream, oldest first."""
    prefix = session.subject(database, "snap", table)
    counts = await session.subjects(session.names(database).stream("snap"), f"{prefix}.*")
    return [
        SnapshotTopic(topic=topic, at=_requested_at(topic), messages=counts[topic])
        for topic in sorted(counts)
    ]


def _requested_at(topic: str) -> datetime:
    """The time in the name of a topic.

    >>> _requested_at("CREEK.shop.snap.public.users.20260102030405_000006_1f2e").isoformat()
    '2026-01-02T03:04:05.000006+00:00'
    """
    name = topic.rpartition(".")[2]
    try:
        return datetime.strptime(name.rpartition("_")[0], "%Y%m%d%H%M%S_%f").replace(tzinfo=UTC)
    except ValueError as error:
        raise MalformedError(f"{topic!r} is not the topic of a snapshot") from error
