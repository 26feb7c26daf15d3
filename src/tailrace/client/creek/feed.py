"""The tables of a database in the form that mirrors read: chunks of a snapshot, then transactions.

Values have the form of the bridge's messages. The schema of a table comes from the Avro schemas of
its rows and changes.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tailrace.client.connection import LOG
from tailrace.client.creek.snapshot import SnapshotFailedError, request_snapshot
from tailrace.client.creek.table_schema import table_schema
from tailrace.client.creek.transactions import UNKNOWN_VISIBILITY, CreekTransactions
from tailrace.client.iteration import PlainIteration
from tailrace.client.names import Table
from tailrace.client.snapshots.messages import Meta
from tailrace.client.snapshots.requests import MAX_SNAPSHOTS
from tailrace.errors import MalformedError, SinkError
from tailrace.position import Lsn
from tailrace.visibility import Visibility

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from tailrace.client.creek.avro import RowSchema
    from tailrace.client.creek.session import Session
    from tailrace.client.creek.snapshot import SnapshotHeader, SnapshotReader
    from tailrace.client.identity import StreamIdentity
    from tailrace.client.replica import State
    from tailrace.client.schemas import Schema
    from tailrace.snapshot.job import Form

_CHUNK_ROWS = 5_000
"""Rows per chunk; a chunk ends with the first batch that reaches this number."""


class Feed:
    """The tables of one database."""

    def __init__(self, session: Session, database: str) -> None:
        self._session = session
        self._database = database
        self._schemas: dict[Table, tuple[Schema, str | None]] = {}
        """The schema of each table, and the fingerprint that it was read from."""

    async def stream_identity(self) -> StreamIdentity | None:
        """What identifies the stream of changes; None if the stream is missing."""
        stream = self._session.names(self._database).stream("wal")
        return await replace(self._session.shared, stream=stream).stream_identity()

    async def schema(self, table: str) -> Schema | None:
        """The schema of the last rows or changes; before the first, the newest published one.

        The schema of the last changes may have another text by now: a column whose new type has the
        same Avro type keeps the fingerprint.
        """
        name = Table.parse(table)
        message = None
        with contextlib.suppress(SinkError):
            message = await self._session.last_schema(self._database, name)
        known = self._schemas.get(name)
        if message is not None and (known is None or known[1] == message.fingerprint):
            published = await self._session.change_schema(message.fingerprint, self._database, name)
            schema = table_schema(name, published.after, published.before)
            self.set_schema(schema, message.fingerprint)
        return self._schemas[name][0] if name in self._schemas else None

    async def schemas(self) -> dict[str, Schema]:
        """The schemas of the tables that were read so far."""
        return {str(table): schema for table, (schema, _) in self._schemas.items()}

    def set_schema(self, schema: Schema, fingerprint: str | None = None) -> None:
        """Note the schema of rows, or of changes with this fingerprint."""
        self._schemas[schema.table] = schema, fingerprint

    def chunks(self, table: str, *, form: Form = "rows") -> CreekChunks:  # noqa: ARG002 - one form
        """The rows of a snapshot in chunks, while the producer still reads them."""
        return CreekChunks(self, self._session, self._database, Table.parse(table))

    def transactions(self, table: str, state: State) -> CreekTransactions:
        """The changes after a state, in batches of whole transactions."""
        return CreekTransactions(
            self._session, self._database, Table.parse(table), state, on_schema=self.set_schema
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CreekChunk:
    """Some thousand rows of a snapshot, still encoded."""

    snapshot_id: str
    schema: RowSchema
    packets: list[bytes]
    columns: None = None

    def rows(self) -> list[dict[str, Any]]:
        """The rows, decoded."""
        decode = self.schema.decode
        return [decode(packet, "message") for packet in self.packets]

    def plain(self) -> bytes:
        """The encoded rows."""
        return b"".join(self.packets)


class CreekChunks(PlainIteration[CreekChunk]):
    """The chunks of one snapshot, in order. After the last chunk `meta` is set.

    A chunk with another `snapshot_id` than the chunk before belongs to a snapshot that supersedes
    the first one: discard all earlier chunks.
    """

    def __init__(self, feed: Feed, session: Session, database: str, table: Table) -> None:
        super().__init__(session.shared)
        self._feed = feed
        self._session = session
        self._database = database
        self._table = table
        self.meta: Meta | None = None

    async def _batches(self) -> AsyncGenerator[list[CreekChunk]]:
        for attempt in range(1, MAX_SNAPSHOTS + 1):
            reader = await request_snapshot(self._session, self._database, self._table)
            try:
                async with contextlib.aclosing(self._read(reader)) as chunks:
                    async for chunk in chunks:
                        yield [chunk]
            except SnapshotFailedError as error:
                if attempt == MAX_SNAPSHOTS:
                    raise
                LOG.warning("snapshot.failed table=%s reason=%s", self._table, error)
            else:
                return

    async def _read(self, reader: SnapshotReader) -> AsyncGenerator[CreekChunk]:
        packets: list[bytes] = []
        count = 0
        async with contextlib.aclosing(reader.batches()) as batches:
            async for batch in batches:
                assert reader.schema is not None
                if not count:
                    await self._note_schema(reader.schema)
                packets += batch
                count += len(batch)
                if len(packets) >= _CHUNK_ROWS:
                    yield CreekChunk(
                        snapshot_id=reader.topic, schema=reader.schema, packets=packets
                    )
                    packets = []
        assert reader.schema is not None
        assert reader.header is not None
        if packets:
            yield CreekChunk(snapshot_id=reader.topic, schema=reader.schema, packets=packets)
        self.meta = snapshot_meta(reader.header, count)

    async def _note_schema(self, schema: RowSchema) -> None:
        self._feed.set_schema(table_schema(self._table, schema.record))
        # Refresh the cache: changes after the snapshot must not be read by an older schema.
        with contextlib.suppress(SinkError):
            await self._session.last_schema(self._database, self._table)


def snapshot_meta(header: SnapshotHeader, rows: int) -> Meta:
    """The metadata of a snapshot.

    Without a visibility the LSN of a change decides whether the snapshot contains it, so reading
    may start at the time of the snapshot. With one, the LSN decides for rows of backfills only:
    those of before the snapshot are older than its rows.
    """
    visibility, lsn = header.visibility, header.lsn
    try:
        if visibility is not None and header.snapshot_lsn is not None:
            lsn = str(Lsn(Lsn.parse(header.snapshot_lsn) - 1))
        return Meta(
            snapshot_id=header.topic,
            lsn=Lsn.parse(lsn),
            visibility=UNKNOWN_VISIBILITY if visibility is None else Visibility.parse(visibility),
            timestamp=header.taken_at or header.at,
            since=header.at if visibility is None else header.since,
            batch_count=rows,
            row_count=rows,
            supersedes=None,
            pipeline=header.pipeline,
        )
    except ValueError as error:
        raise MalformedError(f"the header of a snapshot is invalid: {error}") from error
