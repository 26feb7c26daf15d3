"""A snapshot's chunks as they reach the stream, while the rest of it is still being made.

For those who can take back what they have: a snapshot may be given up on the way, and another takes
its place. Whoever cannot waits for a whole one, with `tailrace.client.snapshot`.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from tailrace.client.connection import LOG, MissingStreamError
from tailrace.client.iteration import Iteration
from tailrace.client.payload import decoded
from tailrace.client.readers import Ordered, Start
from tailrace.client.snapshot import (
    ASK_AGAIN_S,
    ATTEMPTS,
    CHUNKS,
    SERVICE_AWAY_S,
    Chunk,
    Meta,
    Snapshot,
    chunk_subject,
    incomplete,
    meta_subject,
    refusal,
)
from tailrace.errors import SinkRefusedError, SinkUnreachableError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from tailrace.client.access import Access
    from tailrace.client.names import Table
    from tailrace.client.readers import Arrival
    from tailrace.snapshot.job import Form

_LOOK_S = 0.1


class Chunks(Iteration[Chunk, Chunk]):
    """The chunks of one snapshot, in no order. It ends with the last one; then `meta` is known.

    A chunk with another `snapshot_id` than the one before belongs to a snapshot that has taken the
    place of the first: throw away what came before it.
    """

    def __init__(self, access: Access, table: Table, *, form: Form) -> None:
        super().__init__(access)
        self._table = table
        self._snapshot = Snapshot(access, table, form=form)
        self._asked: list[str] = []
        self.meta: Meta | None = None

    def _handed(self, item: Chunk) -> Chunk:
        return item

    async def _batches(self) -> AsyncGenerator[list[Chunk]]:
        self._asked = [await self._snapshot.ask()]
        while self.meta is None:
            async with contextlib.aclosing(self._read(self._asked[-1])) as batches:
                async for batch in batches:
                    yield batch

    async def _read(self, snapshot_id: str) -> AsyncGenerator[list[Chunk]]:
        """The chunks of this one, until it is whole or it turns out that it never will be."""
        form = self._snapshot.form
        said = meta_subject(self._table, form)
        reader = Ordered(
            self._access.connection, self._access.snapshots,
            chunk_subject(self._table, snapshot_id, form), said,
            start=Start(), batch=CHUNKS,
        )  # fmt: skip
        numbers: set[int] = set()
        arrivals = Patient(reader)
        try:
            while True:
                found, over = [], False
                for arrival in await self._arrived(arrivals, snapshot_id):
                    if arrival.subject == said:
                        over = over or self._over(arrival, snapshot_id, len(numbers))
                    else:
                        chunk = await self._snapshot.chunk(snapshot_id, arrival)
                        if chunk.number not in numbers:
                            numbers.add(chunk.number)
                            found.append(chunk)
                yield found
                if over or self._asked[-1] != snapshot_id:
                    return
        finally:
            await arrivals.close()

    def _over(self, arrival: Arrival, snapshot_id: str, found: int) -> bool:
        """Whether metadata say that nothing more will come of this snapshot."""
        message = decoded(arrival.data, self._access.encoding)
        said = message.get("snapshot_id")
        if "error" in message:
            if said == snapshot_id:
                raise refusal(message)
        elif said == snapshot_id:
            meta = Meta.of(message)
            if found < meta.batch_count:
                raise incomplete(meta, found)
            self.meta = meta
            return True
        elif message.get("supersedes") == snapshot_id:
            LOG.warning(
                "snapshot %s of %s was given up, %s has taken its place",
                snapshot_id, self._table, said,
            )  # fmt: skip
            self._asked.append(str(said))
            return True
        return False

    async def _arrived(self, arrivals: Patient, snapshot_id: str) -> list[Arrival]:
        """What comes next. After a while of silence whoever makes the snapshot is asked again."""
        loop = asyncio.get_running_loop()
        away_since = 0.0
        while True:
            found = await arrivals.next(ASK_AGAIN_S)
            if found:
                return found
            try:
                again = await self._snapshot.ask()
                last = await self._snapshot.last_meta()
            except SinkUnreachableError:
                # Whoever makes it may be starting again; it then goes on with what it has.
                away_since = away_since or loop.time()
                if loop.time() - away_since > SERVICE_AWAY_S:
                    raise
                continue
            away_since = 0.0
            if again == snapshot_id:
                continue
            # Its metadata were written before anybody could be given another id.
            if last is None or snapshot_id not in (
                last[1].get("snapshot_id"),
                last[1].get("supersedes"),
            ):
                LOG.warning("snapshot %s of %s failed, now %s", snapshot_id, self._table, again)
                self._asked.append(again)
                self._check_attempts()
                return []

    def _check_attempts(self) -> None:
        if len(self._asked) > ATTEMPTS:
            raise SinkRefusedError(
                f"snapshots of {self._table} fail: {', '.join(self._asked[:-1])}",
                hint="The log of the pipeline that makes them says why.",
            )


class Patient:
    """Waits for a reader's messages for a while, and for its stream if there is none yet."""

    def __init__(self, reader: Ordered) -> None:
        self._reader = reader
        self._step: asyncio.Future[list[Arrival]] | None = None

    async def next(self, patience_s: float | None) -> list[Arrival] | None:
        """What came meanwhile. None: nothing in time; nothing that comes later is lost."""
        if self._step is None:
            self._step = asyncio.ensure_future(self._arrivals())
        done, _ = await asyncio.wait({self._step}, timeout=patience_s)
        if not done:
            return None
        step, self._step = self._step, None
        return step.result()

    async def _arrivals(self) -> list[Arrival]:
        while True:
            try:
                return await self._reader.next()
            except MissingStreamError:
                # The first snapshot makes it.
                await asyncio.sleep(_LOOK_S)

    async def close(self) -> None:
        """Give up waiting."""
        if self._step is not None:
            self._step.cancel()
            await asyncio.gather(self._step, return_exceptions=True)
        await self._reader.close()
