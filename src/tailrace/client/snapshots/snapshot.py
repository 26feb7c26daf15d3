"""The rows of a table at one point in time, on request.

No row is delivered before the metadata say that the snapshot is complete. So the rows of a
snapshot that is abandoned and superseded are never delivered: the client waits for the other one.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from tailrace.client.iteration import PlainIteration
from tailrace.client.readers.ordered import OrderedReader
from tailrace.client.readers.reader import Start
from tailrace.client.snapshots.messages import (
    CHUNKS_PER_REQUEST,
    Meta,
    chunk_subject,
    incomplete,
    read_chunk,
)
from tailrace.client.snapshots.requests import SnapshotRequests

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from tailrace.client.access import Access
    from tailrace.client.names import Table


class Snapshot(PlainIteration[dict[str, Any]]):
    """The rows of one table. `meta` is set from the first row on."""

    def __init__(self, access: Access, table: Table) -> None:
        super().__init__(access)
        self._table = table
        self._requests = SnapshotRequests(access, table)
        self.meta: Meta | None = None

    async def _batches(self) -> AsyncGenerator[list[dict[str, Any]]]:
        self.meta = meta = await self.complete()
        async with contextlib.aclosing(self.chunks(meta)) as chunks:
            async for rows in chunks:
                yield rows

    async def complete(self) -> Meta:
        """Request a snapshot and wait until all of it is in the stream."""
        return await self._requests.complete()

    async def chunks(self, meta: Meta) -> AsyncGenerator[list[dict[str, Any]]]:
        """The rows of a complete snapshot, typed, some thousand per list."""
        typer = await self._access.row_typer(self._table)
        connection, stream = self._access.connection, self._access.snapshots
        subject = chunk_subject(self._table, meta.snapshot_id, self._requests.form)
        reader = OrderedReader(connection, stream, subject, start=Start(), batch=CHUNKS_PER_REQUEST)
        numbers: set[int] = set()
        row_count = 0
        try:
            while len(numbers) < meta.batch_count:
                messages = await reader.next()
                for message in messages:
                    chunk = await read_chunk(self._access, meta.snapshot_id, message)
                    if chunk.number in numbers:
                        # A service that resumes may write a chunk a second time.
                        continue
                    numbers.add(chunk.number)
                    rows = chunk.rows()
                    row_count += len(rows)
                    yield [typer.apply(row) for row in rows]
                if len(numbers) == meta.batch_count or (messages and messages[-1].pending):
                    continue
                # The consumer may read a replica that lags: the leader decides what is missing.
                if await connection.message(stream, reader.last_sequence + 1, subject) is None:
                    raise incomplete(meta, len(numbers))
        finally:
            await reader.close()
        if row_count != meta.row_count:
            raise incomplete(meta, len(numbers))
