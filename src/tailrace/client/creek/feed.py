"""A database's tables as mirrors take them: a snapshot in chunks, then whole transactions.

Values are written as messages of the bridge have them. What a table looks like is what its rows and
changes say of themselves: their schemas come with them.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tailrace.client.connection import LOG
from tailrace.client.creek.described import described
from tailrace.client.creek.snapshot import SnapshotFailedError, asked_for
from tailrace.client.creek.transactions import UNTOLD, Transactions
from tailrace.client.iteration import Iteration
from tailrace.client.names import Table
from tailrace.client.snapshot import ATTEMPTS, Meta
from tailrace.errors import MalformedError, SinkError
from tailrace.position import Lsn
from tailrace.visibility import Visibility

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from tailrace.client.creek.avro import Rows
    from tailrace.client.creek.session import Session
    from tailrace.client.creek.snapshot import SnapshotHeader, Topic
    from tailrace.client.replica import State
    from tailrace.client.schemas import Schema
    from tailrace.snapshot.job import Form

_ENOUGH = 5_000
"""Rows in a chunk, or few more."""


class Feed:
    """The tables of one database."""

    def __init__(self, session: Session, database: str) -> None:
        self._session = session
        self._database = database
        self._told: dict[Table, tuple[Schema, str | None]] = {}

    async def stream_created(self) -> str | None:
        """When the stream of changes was created."""
        return await self._session.shared.stream_created()

    async def schema(self, table: str) -> Schema | None:
        """A table as the last rows or changes say it is; before the first, as published last.

        The schema those changes name may have another text by now: a type that Avro has alike.
        """
        name = Table.parse(table)
        message = None
        with contextlib.suppress(SinkError):
            message = await self._session.last_schema(self._database, name)
        told = self._told.get(name)
        if message is not None and (told is None or told[1] == message.fingerprint):
            event = await self._session.event(message.fingerprint, self._database, name)
            self.tell(described(name, event.after, event.before), message.fingerprint)
        return self._told[name][0] if name in self._told else None

    async def schemas(self) -> dict[str, Schema]:
        """The tables that are known so far."""
        return {str(table): schema for table, (schema, _) in self._told.items()}

    def tell(self, schema: Schema, fingerprint: str | None = None) -> None:
        """Rows, or changes with this fingerprint, say what their table looks like."""
        self._told[schema.table] = schema, fingerprint

    def chunks(self, table: str, *, form: Form = "rows") -> Chunks:  # noqa: ARG002 - one form
        """The rows of a snapshot, some thousand at a time, while it is being made."""
        return Chunks(self, self._session, self._database, Table.parse(table))

    def transactions(self, table: str, state: State) -> Transactions:
        """The changes behind a state, in batches of whole transactions."""
        return Transactions(
            self._session, self._database, Table.parse(table), state, tell=self.tell
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CreekChunk:
    """Some thousand rows of a snapshot, not looked at yet."""

    snapshot_id: str
    schema: Rows
    packets: list[bytes]
    columns: None = None

    def rows(self) -> list[dict[str, Any]]:
        """The rows."""
        row = self.schema.row
        return [row(each, "written") for each in self.packets]

    def plain(self) -> bytes:
        """Its messages."""
        return b"".join(self.packets)


class Chunks(Iteration[CreekChunk, CreekChunk]):
    """The chunks of one snapshot, in order. It ends with the last one; then `meta` is known.

    A chunk with another `snapshot_id` than the one before belongs to a snapshot that has taken the
    place of the first: throw away what came before it.
    """

    def __init__(self, feed: Feed, session: Session, database: str, table: Table) -> None:
        super().__init__(session.shared)
        self._feed = feed
        self._session = session
        self._database = database
        self._table = table
        self.meta: Meta | None = None

    def _handed(self, item: CreekChunk) -> CreekChunk:
        return item

    async def _batches(self) -> AsyncGenerator[list[CreekChunk]]:
        for attempt in range(ATTEMPTS):
            topic = await asked_for(self._session, self._database, self._table)
            try:
                async with contextlib.aclosing(self._read(topic)) as chunks:
                    async for chunk in chunks:
                        yield [chunk]
            except SnapshotFailedError as error:
                if attempt == ATTEMPTS - 1:
                    raise
                LOG.warning("%s; asking for another one", error)
            else:
                return

    async def _read(self, topic: Topic) -> AsyncGenerator[CreekChunk]:
        held: list[bytes] = []
        count = 0
        async with contextlib.aclosing(topic.batches()) as batches:
            async for batch in batches:
                assert topic.rows is not None
                if not count:
                    self._feed.tell(described(self._table, topic.rows.record))
                    # Changes behind the snapshot are not to be read by what was before it.
                    with contextlib.suppress(SinkError):
                        await self._session.last_schema(self._database, self._table)
                held += batch
                count += len(batch)
                if len(held) >= _ENOUGH:
                    yield CreekChunk(snapshot_id=topic.name, schema=topic.rows, packets=held)
                    held = []
        assert topic.rows is not None
        assert topic.header is not None
        if held:
            yield CreekChunk(snapshot_id=topic.name, schema=topic.rows, packets=held)
        self.meta = _meta(topic.header, count)


def _meta(header: SnapshotHeader, rows: int) -> Meta:
    """Without a visibility, changes are told apart by their LSN: none is behind a later one."""
    told = header.visibility
    try:
        return Meta(
            snapshot_id=header.topic,
            lsn=Lsn.parse(header.lsn),
            visibility=UNTOLD if told is None else Visibility.parse(told),
            timestamp=header.at,
            since=header.at if told is None else header.since,
            batch_count=rows,
            row_count=rows,
            supersedes=None,
        )
    except ValueError as error:
        raise MalformedError(f"a snapshot's header is not understood: {error}") from error
