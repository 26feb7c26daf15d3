"""The chunks of a snapshot as they reach the stream, while the service still writes the rest.

For consumers that can discard rows: a snapshot may be abandoned, and another one supersedes it.
Consumers that cannot discard rows use `tailrace.client.snapshots.snapshot`.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from tailrace.client.iteration import PlainIteration
from tailrace.client.payload import decode
from tailrace.client.readers.ordered import OrderedReader
from tailrace.client.readers.reader import Start
from tailrace.client.readers.timed import TimedReader
from tailrace.client.snapshots.messages import (
    CHUNKS_PER_REQUEST,
    Chunk,
    Meta,
    chunk_subject,
    incomplete,
    meta_subject,
    read_chunk,
    refusal,
)
from tailrace.client.snapshots.requests import REPEAT_S, SnapshotRequests
from tailrace.errors import SinkUnreachableError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from tailrace.client.access import Access
    from tailrace.client.names import Table
    from tailrace.client.readers.reader import StreamMessage
    from tailrace.snapshot.job import Form


class Chunks(PlainIteration[Chunk]):
    """The chunks of one snapshot, in any order. After the last chunk `meta` is set.

    A chunk with another `snapshot_id` than the chunk before belongs to a snapshot that supersedes
    the first one: discard all earlier chunks.
    """

    def __init__(self, access: Access, table: Table, *, form: Form) -> None:
        super().__init__(access)
        self._table = table
        self._requests = SnapshotRequests(access, table, form)
        self.meta: Meta | None = None

    async def _batches(self) -> AsyncGenerator[list[Chunk]]:
        await self._requests.start()
        while self.meta is None:
            async with contextlib.aclosing(self._read(self._requests.ids[-1])) as batches:
                async for batch in batches:
                    yield batch

    async def _read(self, snapshot_id: str) -> AsyncGenerator[list[Chunk]]:
        """The chunks of one snapshot, until it is complete or another one supersedes it."""
        form = self._requests.form
        metadata = meta_subject(self._table, form)
        reader = OrderedReader(
            self._access.connection, self._access.snapshots,
            chunk_subject(self._table, snapshot_id, form), metadata,
            start=Start(), batch=CHUNKS_PER_REQUEST,
        )  # fmt: skip
        numbers: set[int] = set()
        timed = TimedReader(reader)
        try:
            while True:
                # Metadata and chunks are read by one consumer, so they arrive in the stream's
                # order: when the metadata arrive, all chunks are here.
                chunks, final = [], False
                for message in await self._next_messages(timed, snapshot_id):
                    if message.subject == metadata:
                        final = final or self._is_final(message, snapshot_id, len(numbers))
                    else:
                        chunk = await read_chunk(self._access, snapshot_id, message)
                        if chunk.number not in numbers:
                            numbers.add(chunk.number)
                            chunks.append(chunk)
                yield chunks
                if final or self._requests.ids[-1] != snapshot_id:
                    return
        finally:
            await timed.close()

    def _is_final(self, message: StreamMessage, snapshot_id: str, chunks: int) -> bool:
        """Whether a metadata message ends this snapshot.

        | metadata message                | result                                           |
        |---------------------------------|--------------------------------------------------|
        | this snapshot is complete       | True; an error if chunks are missing             |
        | this snapshot failed            | the failure is raised                            |
        | another one supersedes this one | True; the other one is the next to read          |
        | about other snapshots           | False                                            |
        """
        content = decode(message.data, self._access.encoding)
        about = content.get("snapshot_id")
        if "error" in content:
            if about == snapshot_id:
                raise refusal(content)
        elif about == snapshot_id:
            meta = Meta.of(content)
            if chunks < meta.batch_count:
                raise incomplete(meta, chunks)
            self.meta = meta
            return True
        elif content.get("supersedes") == snapshot_id:
            self._requests.superseded(snapshot_id, str(about))
            self._requests.ids.append(str(about))
            return True
        return False

    async def _next_messages(self, timed: TimedReader, snapshot_id: str) -> list[StreamMessage]:
        """The next messages. While none arrive, the request is repeated every `REPEAT_S`.

        An empty list: the snapshot failed, and another one answers.
        """
        while True:
            messages = await timed.next(REPEAT_S)
            if messages:
                self._requests.service_seen()
                return messages
            try:
                answered = await self._requests.request()
                latest = await self._requests.last_meta()
            except SinkUnreachableError as error:
                self._requests.service_away(error)
                continue
            self._requests.service_seen()
            if answered == snapshot_id:
                continue
            # The service writes the metadata of a snapshot before it answers with another id. So if
            # the metadata are there, the reader is about to get them, and nothing failed.
            about = () if latest is None else _snapshot_ids(latest[1])
            if snapshot_id not in about:
                self._requests.failed(answered)
                return []


def _snapshot_ids(metadata: Mapping[str, Any]) -> tuple[Any, Any]:
    return metadata.get("snapshot_id"), metadata.get("supersedes")
