"""Producing: all batches that wait become one transaction.

Invariants:

1. Offsets come from the partition's row, which the writing transaction locks. Only a commit uses
   them up: offsets have no gaps, and a record is never visible before one with a smaller offset.
2. A partition that another transaction has locked (an application that writes to it with SQL and
   does not commit) delays no other partition: its batches wait for a later transaction. The writer
   never waits for a lock, so there is no deadlock.
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
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psycopg
import structlog
from psycopg.types.json import Jsonb

from tailrace.broker.tables import records
from tailrace.broker.tables.pool import connect
from tailrace.errors import PostgresUnreachableError, TailraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tailrace.broker.tables.catalog import Topic
    from tailrace.broker.tables.pool import Connection
    from tailrace.broker.tables.records import Batch

PartitionKey = tuple[int, int]
"""A topic's id and a partition number."""
ProducerKey = tuple[int, int, int]
"""A producer's id, and a partition key."""

_BLOCKED_S = 0.01
"""Delay before a locked partition is tried again."""
_MAX_TRANSACTION_BYTES = 16 << 20
_REMEMBERED_BATCHES = 5
"""As in Kafka: a producer has at most five requests in flight."""

_LOCK = """
SELECT topic_id, partition_id, next_offset FROM kafka.partitions
WHERE (topic_id, partition_id) IN (SELECT * FROM unnest(%s::int[], %s::int[]))
ORDER BY topic_id, partition_id FOR UPDATE SKIP LOCKED
"""
_EXISTING = """
SELECT topic_id, partition_id FROM kafka.partitions
WHERE (topic_id, partition_id) IN (SELECT * FROM unnest(%s::int[], %s::int[]))
"""
_PRODUCERS = """
SELECT producer_id, topic_id, partition_id, epoch, batches FROM kafka.producers
WHERE (producer_id, topic_id, partition_id)
   IN (SELECT * FROM unnest(%s::bigint[], %s::int[], %s::int[]))
"""
_ADVANCE = """
UPDATE kafka.partitions p SET next_offset = w.next_offset
FROM unnest(%s::int[], %s::int[], %s::bigint[]) w (topic_id, partition_id, next_offset)
WHERE (p.topic_id, p.partition_id) = (w.topic_id, w.partition_id)
"""
_STORE_PRODUCERS = """
INSERT INTO kafka.producers (producer_id, topic_id, partition_id, epoch, batches)
SELECT * FROM unnest(%s::bigint[], %s::int[], %s::int[], %s::smallint[], %s::jsonb[])
ON CONFLICT (producer_id, topic_id, partition_id) DO UPDATE
SET epoch = excluded.epoch, batches = excluded.batches, written_at = now()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteResult:
    """The offset of a written batch, or the name of Kafka's error code."""

    offset: int = -1
    fresh: bool = False
    """Whether this transaction wrote it; False for a batch that was written before."""
    error: str = ""
    message: str = ""


_NOT_LEADER = WriteResult(
    error="not_leader_or_follower", message="the broker has lost PostgreSQL, or is stopping"
)


@dataclass(slots=True, kw_only=True)
class PendingBatch:
    """A batch that waits to be written."""

    topic: Topic
    partition: int
    batch: Batch
    data: bytes
    """The bytes as sent; empty if the records were changed since."""
    done: asyncio.Future[WriteResult]

    @property
    def key(self) -> PartitionKey:
        """The partition it belongs to."""
        return self.topic.id, self.partition


@dataclass(slots=True)
class _Producer:
    epoch: int
    batches: list[list[int]] = field(default_factory=list)
    """The last batches: first sequence, last sequence, offset."""


class Writer:
    """Writes batches over one connection, one transaction at a time."""

    def __init__(self, dsn: str, on_written: Callable[[PendingBatch, int], None]) -> None:
        self._dsn = dsn
        self._on_written = on_written
        self._queue: deque[PendingBatch] = deque()
        self._blocked: dict[PartitionKey, list[PendingBatch]] = {}
        self._wake = asyncio.Event()
        self._connection: Connection | None = None
        self._paused = False
        self._events = structlog.get_logger()

    def put(
        self, topic: Topic, partition: int, batch: Batch, data: bytes
    ) -> asyncio.Future[WriteResult]:
        """Queue a batch. Batches of a partition are written in the order of these calls."""
        done: asyncio.Future[WriteResult] = asyncio.get_running_loop().create_future()
        if self._paused:
            done.set_result(_NOT_LEADER)
            return done
        self._queue.append(
            PendingBatch(topic=topic, partition=partition, batch=batch, data=data, done=done)
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
            draft = _Draft(offsets=offsets, producers=await _producers(connection, taken))
            results = [draft.add(one) for one in taken]
            await draft.store(connection)
        for one, result in zip(taken, results, strict=True):
            if result.fresh:
                self._on_written(one, result.offset)
            self._answer([one], result)
        for one in locked_out:
            if one.key in missing:
                self._answer([one], WriteResult(error="unknown_topic_or_partition"))
            else:
                self._blocked.setdefault(one.key, []).append(one)


@dataclass(slots=True, kw_only=True)
class _Draft:
    """The rows that a transaction will write."""

    offsets: dict[PartitionKey, int]
    """The next offset of each partition."""
    producers: dict[ProducerKey, _Producer]
    rows: dict[str, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    advanced: set[PartitionKey] = field(default_factory=set)
    changed: set[ProducerKey] = field(default_factory=set)

    def add(self, pending: PendingBatch) -> WriteResult:
        """Add a batch: its offset, or the error for its producer."""
        batch, key = pending.batch, pending.key
        first = self.offsets[key]
        if batch.producer_id >= 0:
            producer_key = (batch.producer_id, *key)
            producer = self.producers.setdefault(producer_key, _Producer(batch.producer_epoch))
            answered = _check_sequence(producer, batch)
            if answered is not None:
                return answered
            recent = producer.batches[1 - _REMEMBERED_BATCHES :]
            producer.batches = [*recent, [batch.sequence, batch.last_sequence, first]]
            self.changed.add(producer_key)
        self.rows[pending.topic.table].append(records.copy_rows(batch, *key, first))
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
                await copy.write(b"".join((records.SIGNATURE, *parts, records.TRAILER)))
        if self.advanced:
            keys = sorted(self.advanced)
            ends = [self.offsets[key] for key in keys]
            await connection.execute(_ADVANCE, [*_columns(keys), ends])
        if self.changed:
            producer_keys = sorted(self.changed)
            producers = [self.producers[key] for key in producer_keys]
            epochs = [producer.epoch for producer in producers]
            batches = [Jsonb(producer.batches) for producer in producers]
            await connection.execute(_STORE_PRODUCERS, [*_columns(producer_keys), epochs, batches])


def _check_sequence(producer: _Producer, batch: Batch) -> WriteResult | None:
    """The answer to a batch that is not written; None if it is the producer's next batch.

    | the batch's epoch and sequence             | answer                         |
    |--------------------------------------------|--------------------------------|
    | an older epoch                             | `invalid_producer_epoch`       |
    | one of the last five batches               | the offset it has              |
    | the next sequence; 0 in a newer epoch      | None: write it                 |
    | anything else                              | `out_of_order_sequence_number` |
    """
    if batch.producer_epoch < producer.epoch:
        return WriteResult(error="invalid_producer_epoch", message="a newer producer uses this id")
    if batch.producer_epoch > producer.epoch:
        producer.epoch, producer.batches = batch.producer_epoch, []
    for first, last, offset in producer.batches:
        if (first, last) == (batch.sequence, batch.last_sequence):
            return WriteResult(offset=offset)
    expected = (producer.batches[-1][1] + 1) & 0x7FFFFFFF if producer.batches else 0
    if batch.sequence != expected:
        return WriteResult(
            error="out_of_order_sequence_number",
            message=f"expected sequence {expected}, got {batch.sequence}",
        )
    return None


async def _lock(connection: Connection, taken: list[PendingBatch]) -> dict[PartitionKey, int]:
    """Lock the partitions that no other transaction has locked; their next offsets."""
    keys = sorted({one.key for one in taken})
    cursor = await connection.execute(_LOCK, _columns(keys))
    return {(topic, partition): offset for topic, partition, offset in await cursor.fetchall()}


async def _missing(connection: Connection, left: list[PendingBatch]) -> set[PartitionKey]:
    keys = sorted({one.key for one in left})
    cursor = await connection.execute(_EXISTING, _columns(keys))
    return set(keys) - {(topic, partition) for topic, partition in await cursor.fetchall()}


async def _producers(
    connection: Connection, taken: list[PendingBatch]
) -> dict[ProducerKey, _Producer]:
    keys = sorted(
        {(one.batch.producer_id, *one.key) for one in taken if one.batch.producer_id >= 0}
    )
    if not keys:
        return {}
    cursor = await connection.execute(_PRODUCERS, _columns(keys))
    rows = await cursor.fetchall()
    return {(row[0], row[1], row[2]): _Producer(row[3], row[4]) for row in rows}


def _columns(rows: Sequence[tuple[int, ...]]) -> list[list[int]]:
    return [list(column) for column in zip(*rows, strict=True)]
