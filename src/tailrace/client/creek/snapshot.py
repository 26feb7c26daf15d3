"""A table's rows at one moment: a header, a message a row, and an end, on a topic of their own."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

import orjson

from tailrace.client.chunks import Patient
from tailrace.client.creek.avro import Rows
from tailrace.client.creek.session import content, document, refused
from tailrace.client.iteration import Iteration
from tailrace.client.readers import Ordered, Start
from tailrace.encode.creek.schema import END
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
    from tailrace.client.readers import Arrival

_BATCH = 2000
_FAILED = "Tailrace-Error"
_BEHIND_END_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotHeader:
    """What a snapshot says of itself."""

    fingerprint: str
    schema: str
    """Of its rows, as JSON."""
    tx_id: int
    lsn: str
    """Changes that are not in the snapshot were committed behind this."""
    at: datetime
    approx_rows: int
    topic: str
    visibility: str | None = None
    """Which transactions it sees, as PostgreSQL writes it. None: the producer does not tell."""
    since: datetime | None = None
    """Changes that are not in the snapshot were committed after this. None: not known."""

    @classmethod
    def of(cls, topic: str, data: bytes) -> Self:
        """Read the first message of a topic."""
        found = document(data, "a snapshot's header")
        try:
            since = found.get("since")
            return cls(
                fingerprint=str(found["fingerprint"]),
                schema=str(found["schema"]),
                tx_id=int(found["tx_id"]),
                lsn=str(found["lsn"]),
                at=datetime.fromisoformat(found["at"]),
                approx_rows=int(found["approx_rows"]),
                topic=topic,
                visibility=found.get("visibility"),
                since=datetime.fromisoformat(since) if since else None,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise MalformedError(f"a snapshot's header is not understood: {error!r}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotTopic:
    """A snapshot that the stream holds; it may still be growing."""

    topic: str
    at: datetime
    """When it was asked for."""
    messages: int
    """Header and end included."""


class SnapshotFailedError(SinkRefusedError):
    """A snapshot that was begun and will never be whole."""


class Topic:
    """The messages of one snapshot.

    If nothing comes for a while `ask`, if given, asks for a snapshot again. A producer that is
    still at it answers with the same topic; it may be waiting for those who write to the table.
    """

    def __init__(
        self, session: Session, name: str, ask: Callable[[], Awaitable[str]] | None = None
    ) -> None:
        self._session = session
        self.name = name
        self._ask = ask
        self.header: SnapshotHeader | None = None
        self.rows: Rows | None = None
        self._ended = False
        self._ambiguous = False
        """Whether a row may look like the end: three small integers do, for example."""

    async def batches(self) -> AsyncGenerator[list[bytes]]:
        """Rows as they come, not looked at; the header is known with the first batch."""
        stream = self._session.stream("snap")
        reader = Ordered(self._session.connection, stream, self.name, start=Start(), batch=_BATCH)
        arrivals = Patient(reader)
        try:
            while not self._ended or self._ambiguous:
                found = await self._arrived(arrivals)
                if not found:
                    return
                yield self._taken(found)
        finally:
            await arrivals.close()

    async def _arrived(self, arrivals: Patient) -> list[Arrival]:
        """What comes next. Nothing: what looked like the end was the end."""
        patience_s = _BEHIND_END_S if self._ended else self._session.patience_s
        loop = asyncio.get_running_loop()
        while True:
            deadline = loop.time() + patience_s
            while (left := deadline - loop.time()) > 0:
                if found := await arrivals.next(left):
                    return found
            if self._ended:
                return []
            if self._ask is None:
                raise SinkUnreachableError(
                    f"snapshot {self.name} has not gone on for {patience_s:g} s",
                    hint="Check that the producer runs, and ask for another one.",
                )
            if (other := await self._ask()) != self.name:
                raise SnapshotFailedError(
                    f"snapshot {self.name} has not gone on, now there is {other}",
                    hint="Ask for another one.",
                )

    def _taken(self, arrivals: list[Arrival]) -> list[bytes]:
        """Rows, up to the end."""
        found = []
        for arrival in arrivals:
            data = content(arrival.data)
            if _FAILED in arrival.headers:
                raise _failure(self.name, arrival.headers[_FAILED], data)
            if self.rows is None:
                self._begin(data)
                continue
            if self._ended:
                # Something follows, so it was a row.
                found.append(END)
            self._ended = data == END
            if not self._ended:
                found.append(data)
            elif not self._ambiguous:
                break
        return found

    def _begin(self, data: bytes) -> None:
        if not data.startswith(b"{"):
            raise PositionLostError(
                f"the stream has let go of the beginning of snapshot {self.name}",
                hint="Ask for a new one, and let the stream keep messages for longer.",
            )
        self.header = SnapshotHeader.of(self.name, data)
        self.rows = Rows(self.header.schema)
        self._ambiguous = self.rows.fits(END)


def _failure(topic: str, said: str, data: bytes) -> SnapshotFailedError:
    hint = ""
    with contextlib.suppress(MalformedError):
        found = document(data, "a failure")
        said, hint = str(found.get("error", said)), str(found.get("hint", ""))
    return SnapshotFailedError(
        f"snapshot {topic} was given up: {said}", hint=hint or "Ask for another one."
    )


class Snapshot(Iteration[dict[str, Any], dict[str, Any]]):
    """The rows of one table. `header` and `keys` are known from the first row on."""

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

    def _handed(self, item: dict[str, Any]) -> dict[str, Any]:
        return item

    async def begun(self) -> SnapshotHeader:
        """Wait for the header."""
        while self.header is None:
            self._ready.extend(await self._next())
        return self.header

    async def _batches(self) -> AsyncGenerator[list[dict[str, Any]]]:
        topic = await self._found()
        async with contextlib.aclosing(topic.batches()) as batches:
            async for batch in batches:
                assert topic.rows is not None
                self.header = topic.header
                self.keys = tuple(each.column for each in topic.rows.record.fields if each.key)
                yield [topic.rows.row(each, "python") for each in batch]

    async def _found(self) -> Topic:
        if self._table is not None:
            return await asked_for(self._session, *self._table)
        stream = self._session.stream("snap")
        if await self._session.connection.message(stream, 1, self._topic) is None:
            raise ConfigError(
                f"there is no snapshot {self._topic!r}", hint="creek.list_snapshots() has them."
            )
        return Topic(self._session, self._topic)


async def asked_for(session: Session, database: str, table: Table) -> Topic:
    """Ask for a snapshot of a table."""

    async def ask() -> str:
        body = {"database": database, "namespace": table.schema, "table": table.name}
        reply = await session.asked("_snapshot", orjson.dumps(body))
        refused(reply)
        topic = reply.data.decode(errors="replace")
        if not topic.startswith(f"{session.namespace}."):
            raise SinkRefusedError(
                f"asked for a snapshot of {table}, a producer says: {topic[:200]}"
            )
        return topic

    return Topic(session, await ask(), ask)


async def listed(session: Session, database: str, table: Table) -> list[SnapshotTopic]:
    """The snapshots of a table that the stream holds, the oldest first."""
    where = session.subject(database, "snap", table)
    found = await session.subjects("snap", f"{where}.*")
    return [
        SnapshotTopic(topic=topic, at=_asked_at(topic), messages=found[topic])
        for topic in sorted(found)
    ]


def _asked_at(topic: str) -> datetime:
    """The time in a topic's name.

    >>> _asked_at("CREEK.shop.snap.public.users.20260102030405_000006_1f2e").isoformat()
    '2026-01-02T03:04:05.000006+00:00'
    """
    name = topic.rpartition(".")[2]
    try:
        return datetime.strptime(name.rpartition("_")[0], "%Y%m%d%H%M%S_%f").replace(tzinfo=UTC)
    except ValueError as error:
        raise MalformedError(f"{topic!r} is not the topic of a snapshot") from error
