"""Producing: all batches that wait become one transaction.

Invariants:

1. Offsets come from the partition's row, which the writing transaction locks. Only a commit uses
   them up: offsets have no gaps, and a record is never visible before one with a smaller offset.
2. A partition that another transaction has locked (an application that writes to it with SQL and
   does not commit) delays no other partition: its batches wait for a later transaction. The writer
   never waits for a lock, so there is no deadlock. They wait for as long as their producer does
   (`timeout_ms`), and only as many requests as fit into `max_blocked_bytes`.
3. The state of idempotent producers is written in the same transaction. A batch that is sent again
   gets the offset that it has. A batch after a gap is refused, also as the first of a producer: the
   batch before it may have failed and will be retried.
4. Success is reported after the commit only. If the response to COMMIT is lost the outcome is
   unknown: the producer gets a retriable error, and invariant 3 makes the retry safe for idempotent
   producers.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psycopg
import structlog

from tailrace.broker.tables import producers, records
from tailrace.broker.tables.pending import PendingBatch, WriteResult
from tailrace.broker.tables.pool import connect
from tailrace.broker.tables.producers import Producer
from tailrace.errors import PostgresUnreachableError, TailraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tailrace.broker.limits import Reservation
    from tailrace.broker.tables.catalog import Topic
    from tailrace.broker.tables.pending import PartitionKey
    from tailrace.broker.tables.pool import Connection
    from tailrace.broker.tables.producers import ProducerKey
    from tailrace.broker.tables.records import Batch

_BLOCKED_S = 0.01
"""Delay before a locked partition is tried again."""
_MIN_TIMEOUT_S = 1.0
"""A producer that does not want to wait for replicas sends a timeout of 0."""
_MAX_TRANSACTION_BYTES = 16 << 20
_LOCK = """
SELECT topic_id, partition_id, next_offset FROM kafka.partitions
WHERE (topic_id, partition_id) IN (SELECT * FROM unnest(%s::int[], %s::int[]))
ORDER BY topic_id, partition_id FOR UPDATE SKIP LOCKED
"""
_EXISTING = """
SELECT topic_id, partition_id FROM kafka.partitions
WHERE (topic_id, partition_id) IN (SELECT * FROM unnest(%s::int[], %s::int[]))
"""
_ADVANCE = """
UPDATE kafka.partitions p SET next_offset = w.next_offset
FROM unnest(%s::int[], %s::int[], %s::bigint[]) w (topic_id, partition_id, next_offset)
WHERE (p.topic_id, p.partition_id) = (w.topic_id, w.partition_id)
"""
_TIMED_OUT = WriteResult(
    error="request_timed_out",
    message="the partition is locked by a transaction in PostgreSQL, or PostgreSQL does not answer",
)
_NOT_LEADER = WriteResult(
    error="not_leader_or_follower", message="the broker has lost PostgreSQL, or is stopping"
)


class Writer:
    """Writes batches over one connection, one transaction at a time."""

    def __init__(
        self,
        dsn: str,
        on_written: Callable[[PendingBatch, int], None],
        *,
        max_blocked_bytes: int = 64 << 20,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._dsn = dsn
        self._on_written = on_written
        self._max_blocked_bytes = max_blocked_bytes
        self._clock = clock
        self._queue: deque[PendingBatch] = deque()
        self._blocked: dict[PartitionKey, list[PendingBatch]] = {}
        self._wake = asyncio.Event()
        self._connection: Connection | None = None
        self._paused = False
        self._events = structlog.get_logger()

    def put(
        self,
        topic: Topic,
        partition: int,
        batch: Batch,
        data: bytes,
        *,
        memory: Reservation,
        timeout_s: float,
    ) -> asyncio.Future[WriteResult]:
        """Queue a batch. Batches of a partition are written in the order of these calls.

        A batch that no transaction has begun to write within `timeout_s` is never written.
        """
        done: asyncio.Future[WriteResult] = asyncio.get_running_loop().create_future()
        if self._paused:
            done.set_result(_NOT_LEADER)
            return done
        deadline = self._clock() + max(timeout_s, _MIN_TIMEOUT_S)
        self._queue.append(
            PendingBatch(
                topic=topic,
                partition=partition,
                batch=batch,
                data=data,
                done=done,
                memory=memory,
                deadline=deadline,
            )
        )
        self._wake.set()
        return done

    async def run(self) -> None:
        """Write until the task is cancelled."""
        while True:
            if not self._queue:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), _BLOCKED_S if self._blocked else None)
            self._wake.clear()
            taken = self._take()
            try:
                if taken:
                    await self._write(taken)
            except (psycopg.Error, TailraceError) as error:
                self._events.warning("broker.write_failed", reason=str(error))
                self._answer(taken, WriteResult(error="kafka_storage_error", message=str(error)))
                await self._disconnect()
            except asyncio.CancelledError:
                # The transaction may be committed: an idempotent producer's retry finds out.
                self._answer(taken, _NOT_LEADER)
                raise

    def expire(self) -> None:
        """Refuse batches that have waited too long. The broker calls it several times per second.

        A batch that is being written is left alone: it may be committed.
        """
        now = self._clock()
        waiting = [*self._queue, *itertools.chain(*self._blocked.values())]
        if not any(one.deadline <= now for one in waiting):
            return
        self._answer([one for one in waiting if one.deadline <= now], _TIMED_OUT)
        self._queue = deque(one for one in self._queue if one.deadline > now)
        left = [one for batches in self._blocked.values() for one in batches if one.deadline > now]
        self._blocked = {}
        self._block(left)

    def _block(self, batches: list[PendingBatch]) -> None:
        """Keep batches of locked partitions; refuse those that are too late or too many.

        Otherwise the batches for one locked partition, and their retries, would use up the memory
        that the producers of all other partitions need. A batch counts with the memory of its
        whole request, which waits for it: a small batch may hold a large request.
        """
        now, size, counted = self._clock(), 0, set()
        for one in batches:
            if id(one.memory) not in counted:
                counted.add(id(one.memory))
                size += one.memory.size
            if one.deadline <= now or size > self._max_blocked_bytes:
                self._answer([one], _TIMED_OUT)
            else:
                self._blocked.setdefault(one.key, []).append(one)

    async def pause(self) -> None:
        """Refuse all batches until `resume`, also those that wait, and close the connection.

        A transaction that runs is aborted, unless its COMMIT is already on its way.
        """
        self._paused = True
        self._answer([*self._queue, *itertools.chain(*self._blocked.values())], _NOT_LEADER)
        self._queue.clear()
        self._blocked.clear()
        await self._disconnect()

    def resume(self) -> None:
        """Write again."""
        self._paused = False

    async def close(self) -> None:
        """Refuse the batches that still wait, and close the connection."""
        await self.pause()

    async def _disconnect(self) -> None:
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    def _take(self) -> list[PendingBatch]:
        """The batches of the next transaction. Blocked ones come first, to keep their order."""
        taken, size = list(itertools.chain(*self._blocked.values())), 0
        self._blocked.clear()
        while self._queue and size < _MAX_TRANSACTION_BYTES:
            taken.append(self._queue.popleft())
            size += taken[-1].batch.size
        return taken

    @staticmethod
    def _answer(batches: list[PendingBatch], result: WriteResult) -> None:
        for one in batches:
            if not one.done.done():
                one.done.set_result(result)

    async def _write(self, taken: list[PendingBatch]) -> None:
        """Write one transaction. Batches of locked partitions stay blocked."""
        connection = self._connection or await connect(self._dsn, name="broker writer")
        if self._paused:
            await connection.close()
            raise PostgresUnreachableError("the broker has lost its lock in PostgreSQL")
        self._connection = connection
        async with connection.transaction():
            offsets = await _lock(connection, taken)
            locked_out = [one for one in taken if one.key not in offsets]
            taken = [one for one in taken if one.key in offsets]
            missing = await _missing(connection, locked_out) if locked_out else set()
            known = await producers.read(connection, _producer_keys(taken))
            draft = _Draft(offsets=offsets, producers=known)
            results = [draft.add(one) for one in taken]
            await draft.store(connection)
        for one, result in zip(taken, results, strict=True):
            if result.fresh:
                self._on_written(one, result.offset)
            self._answer([one], result)
        gone = [one for one in locked_out if one.key in missing]
        self._answer(gone, WriteResult(error="unknown_topic_or_partition"))
        self._block([one for one in locked_out if one.key not in missing])


@dataclass(slots=True, kw_only=True)
class _Draft:
    """The rows that a transaction will write."""

    offsets: dict[PartitionKey, int]
    """The next offset of each partition."""
    producers: dict[ProducerKey, Producer]
    rows: dict[str, list[tuple[Batch, int, int, int]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """Per table: batches with their topic, partition and first offset."""
    advanced: set[PartitionKey] = field(default_factory=set)
    changed: set[ProducerKey] = field(default_factory=set)

    def add(self, pending: PendingBatch) -> WriteResult:
        """Add a batch: its offset, or the error for its producer."""
        batch, key = pending.batch, pending.key
        first = self.offsets[key]
        if batch.producer_id >= 0:
            producer_key = (batch.producer_id, *key)
            producer = self.producers.setdefault(producer_key, Producer(batch.producer_epoch))
            answered = producers.check_sequence(producer, batch)
            if answered is not None:
                return answered
            producer.add(batch, first)
            self.changed.add(producer_key)
        self.rows[pending.topic.table].append((batch, *key, first))
        self.offsets[key] = first + len(batch.records)
        self.advanced.add(key)
        return WriteResult(offset=first, fresh=True)

    async def store(self, connection: Connection) -> None:
        """Write the rows in the open transaction."""
        for table, parts in self.rows.items():
            async with (
                connection.cursor() as cursor,
                cursor.copy(f"COPY {table} FROM STDIN (FORMAT binary)") as copy,
            ):
                large = any(batch.large for batch, *_ in parts)
                await copy.write(await asyncio.to_thread(_rows, parts) if large else _rows(parts))
        if self.advanced:
            keys = sorted(self.advanced)
            ends = [self.offsets[key] for key in keys]
            await connection.execute(_ADVANCE, [*_columns(keys), ends])
        await producers.store(connection, {key: self.producers[key] for key in self.changed})


def _rows(parts: list[tuple[Batch, int, int, int]]) -> bytes:
    """The data of a binary COPY."""
    rows = (records.copy_rows(*part) for part in parts)
    return b"".join((records.SIGNATURE, *rows, records.TRAILER))


async def _lock(connection: Connection, taken: list[PendingBatch]) -> dict[PartitionKey, int]:
    """Lock the partitions that no other transaction has locked; their next offsets."""
    keys = sorted({one.key for one in taken})
    cursor = await connection.execute(_LOCK, _columns(keys))
    return {(topic, partition): offset for topic, partition, offset in await cursor.fetchall()}


async def _missing(connection: Connection, left: list[PendingBatch]) -> set[PartitionKey]:
    keys = sorted({one.key for one in left})
    cursor = await connection.execute(_EXISTING, _columns(keys))
    return set(keys) - {(topic, partition) for topic, partition in await cursor.fetchall()}


def _producer_keys(taken: list[PendingBatch]) -> list[ProducerKey]:
    return sorted(
        {(one.batch.producer_id, *one.key) for one in taken if one.batch.producer_id >= 0}
    )


def _columns(keys: Sequence[PartitionKey]) -> list[list[int]]:
    return [list(column) for column in zip(*keys, strict=True)]
