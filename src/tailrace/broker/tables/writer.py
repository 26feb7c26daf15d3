"""Producing: whatever waits becomes one transaction.

The rules that hold:

1. Offsets come from the partition's row, locked in the writing transaction, and are used up only by
   what commits: they have no holes, and nothing becomes visible before what has smaller ones.
2. A partition that another transaction has locked (an application that writes to it with SQL, and
   takes its time) holds up nobody else: its batches wait for a later round. No lock is ever waited
   for, so there is no deadlock.
3. What an idempotent producer has written is in the same transaction. A batch that comes again gets
   the offset it was given; one that leaves a gap is refused, at the beginning as well: what was
   sent before it may have failed, and will come again.
4. Nobody is told of success before the commit. When the answer to COMMIT is lost, nobody knows:
   clients are told to try again, and rule 3 makes that safe for idempotent ones.
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
from tailrace.errors import TailraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tailrace.broker.tables.catalog import Topic
    from tailrace.broker.tables.pool import Connection
    from tailrace.broker.tables.records import Batch

Place = tuple[int, int]
"""A topic's id and a partition."""
ProducerKey = tuple[int, int, int]
"""A producer's id, and a place."""

_BLOCKED_S = 0.01
_MOST_BYTES = 16 << 20
_REMEMBERED = 5

_LOCK = """
SELECT topic_id, partition_id, next_offset FROM kafka.partitions
WHERE (topic_id, partition_id) IN (SELECT * FROM unnest(%s::int[], %s::int[]))
ORDER BY topic_id, partition_id FOR UPDATE SKIP LOCKED
"""
_THERE = """
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
_REMEMBER = """
INSERT INTO kafka.producers (producer_id, topic_id, partition_id, epoch, batches)
SELECT * FROM unnest(%s::bigint[], %s::int[], %s::int[], %s::smallint[], %s::jsonb[])
ON CONFLICT (producer_id, topic_id, partition_id) DO UPDATE
SET epoch = excluded.epoch, batches = excluded.batches, written_at = now()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Where a batch is; or Kafka's name for why it is not."""

    offset: int = -1
    fresh: bool = False
    """Not when it was there already."""
    error: str = ""
    message: str = ""


@dataclass(slots=True, kw_only=True)
class Waiting:
    """A batch that is to be written."""

    topic: Topic
    partition: int
    batch: Batch
    data: bytes
    """As the producer sent it; empty if that is not what is written."""
    done: asyncio.Future[Written]

    @property
    def place(self) -> Place:
        """Where it belongs."""
        return self.topic.id, self.partition


@dataclass(slots=True)
class _Producer:
    epoch: int
    batches: list[list[int]] = field(default_factory=list)
    """The last few: first sequence, last sequence, offset."""


class Writer:
    """One connection, one transaction at a time, as much in it as there is."""

    def __init__(self, dsn: str, on_written: Callable[[Waiting, int], None]) -> None:
        self._dsn = dsn
        self._on_written = on_written
        self._queue: deque[Waiting] = deque()
        self._blocked: dict[Place, list[Waiting]] = {}
        self._wake = asyncio.Event()
        self._connection: Connection | None = None
        self._events = structlog.get_logger()

    def put(
        self, topic: Topic, partition: int, batch: Batch, data: bytes
    ) -> asyncio.Future[Written]:
        """Batches of a partition are written in the order of these calls."""
        done: asyncio.Future[Written] = asyncio.get_running_loop().create_future()
        self._queue.append(
            Waiting(topic=topic, partition=partition, batch=batch, data=data, done=done)
        )
        self._wake.set()
        return done

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            if not self._queue:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), _BLOCKED_S if self._blocked else None)
            self._wake.clear()
            taken = self._take()
            try:
                await self._write(taken)
            except (psycopg.Error, TailraceError) as error:
                self._events.warning("broker.write-failed", reason=str(error))
                self._settle(taken, Written(error="kafka_storage_error", message=str(error)))
                await self._drop()

    async def close(self) -> None:
        """What still waits is not written."""
        left = [*self._queue, *itertools.chain(*self._blocked.values())]
        self._settle(left, Written(error="not_leader_or_follower", message="the broker stops"))
        self._queue.clear()
        self._blocked.clear()
        await self._drop()

    async def _drop(self) -> None:
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    def _take(self) -> list[Waiting]:
        """What was blocked is tried again, and goes before whatever came later."""
        taken, size = list(itertools.chain(*self._blocked.values())), 0
        self._blocked.clear()
        while self._queue and size < _MOST_BYTES:
            taken.append(self._queue.popleft())
            size += taken[-1].batch.size
        return taken

    @staticmethod
    def _settle(waiting: list[Waiting], answer: Written) -> None:
        for each in waiting:
            if not each.done.done():
                each.done.set_result(answer)

    async def _write(self, taken: list[Waiting]) -> None:
        """One transaction; what could not be part of it is blocked."""
        if self._connection is None:
            self._connection = await connect(self._dsn, name="broker writer")
        connection = self._connection
        async with connection.transaction():
            free = await _locked(connection, taken)
            left = [each for each in taken if each.place not in free]
            taken = [each for each in taken if each.place in free]
            gone = await _missing(connection, left) if left else set()
            draft = _Draft(offsets=free, producers=await _producers(connection, taken))
            answers = [draft.add(each) for each in taken]
            await draft.store(connection)
        for each, answer in zip(taken, answers, strict=True):
            if answer.fresh:
                self._on_written(each, answer.offset)
            self._settle([each], answer)
        for each in left:
            if each.place in gone:
                self._settle([each], Written(error="unknown_topic_or_partition"))
            else:
                self._blocked.setdefault(each.place, []).append(each)


@dataclass(slots=True, kw_only=True)
class _Draft:
    """What a transaction is going to write."""

    offsets: dict[Place, int]
    """The next one of each partition."""
    producers: dict[ProducerKey, _Producer]
    rows: dict[str, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    moved: set[Place] = field(default_factory=set)
    changed: set[ProducerKey] = field(default_factory=set)

    def add(self, each: Waiting) -> Written:
        """A batch: where it will be, or what its producer is told instead."""
        batch, place = each.batch, each.place
        first = self.offsets[place]
        if batch.producer_id >= 0:
            key = (batch.producer_id, *place)
            producer = self.producers.setdefault(key, _Producer(batch.producer_epoch))
            known = _judge(producer, batch)
            if known is not None:
                return known
            recent = producer.batches[1 - _REMEMBERED :]
            producer.batches = [*recent, [batch.sequence, batch.last_sequence, first]]
            self.changed.add(key)
        self.rows[each.topic.table].append(records.copied(batch, *place, first))
        self.offsets[place] = first + len(batch.records)
        self.moved.add(place)
        return Written(offset=first, fresh=True)

    async def store(self, connection: Connection) -> None:
        """Write it."""
        for table, parts in self.rows.items():
            async with (
                connection.cursor() as cursor,
                cursor.copy(f"COPY {table} FROM STDIN (FORMAT binary)") as copy,
            ):
                await copy.write(b"".join((records.SIGNATURE, *parts, records.TRAILER)))
        if self.moved:
            places = sorted(self.moved)
            ends = [self.offsets[place] for place in places]
            await connection.execute(_ADVANCE, [*_columns(places), ends])
        if self.changed:
            keys = sorted(self.changed)
            found = [self.producers[key] for key in keys]
            epochs = [producer.epoch for producer in found]
            batches = [Jsonb(producer.batches) for producer in found]
            await connection.execute(_REMEMBER, [*_columns(keys), epochs, batches])


def _judge(producer: _Producer, batch: Batch) -> Written | None:
    """What a producer is told without writing anything; None if this batch is its next."""
    if batch.producer_epoch < producer.epoch:
        return Written(error="invalid_producer_epoch", message="a newer producer has this id")
    if batch.producer_epoch > producer.epoch:
        producer.epoch, producer.batches = batch.producer_epoch, []
    for first, last, offset in producer.batches:
        if (first, last) == (batch.sequence, batch.last_sequence):
            return Written(offset=offset)
    due = (producer.batches[-1][1] + 1) & 0x7FFFFFFF if producer.batches else 0
    if batch.sequence != due:
        return Written(
            error="out_of_order_sequence_number",
            message=f"sequence {batch.sequence} where {due} is due",
        )
    return None


async def _locked(connection: Connection, taken: list[Waiting]) -> dict[Place, int]:
    """The next offsets of those partitions that nobody else has locked."""
    places = sorted({each.place for each in taken})
    cursor = await connection.execute(_LOCK, _columns(places))
    return {(topic, partition): offset for topic, partition, offset in await cursor.fetchall()}


async def _missing(connection: Connection, left: list[Waiting]) -> set[Place]:
    places = sorted({each.place for each in left})
    cursor = await connection.execute(_THERE, _columns(places))
    return set(places) - {(topic, partition) for topic, partition in await cursor.fetchall()}


async def _producers(connection: Connection, taken: list[Waiting]) -> dict[ProducerKey, _Producer]:
    keys = sorted(
        {(each.batch.producer_id, *each.place) for each in taken if each.batch.producer_id >= 0}
    )
    if not keys:
        return {}
    cursor = await connection.execute(_PRODUCERS, _columns(keys))
    rows = await cursor.fetchall()
    return {(row[0], row[1], row[2]): _Producer(row[3], row[4]) for row in rows}


def _columns(rows: Sequence[tuple[int, ...]]) -> list[list[int]]:
    return [list(column) for column in zip(*rows, strict=True)]
