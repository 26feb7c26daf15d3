"""Consuming: rows of a partition as record batches, and the tail of each partition from memory.

The batches that this broker wrote last stay in memory as the producers sent them, compressed or
not, and are sent to consumers without being parsed. All other records are read from the table. Both
have the same records at the same offsets, because a batch enters memory after its transaction has
committed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tailrace.broker.tables import records

if TYPE_CHECKING:
    from collections.abc import Collection

    from tailrace.broker.tables.catalog import Topic
    from tailrace.broker.tables.pending import PartitionKey
    from tailrace.broker.tables.pool import Connection, Pool

_ROWS = 1000
# octet_length reads a value's size without detoasting it, so rows over the limit are never sent.
# Headers that PostgreSQL has compressed may be a hundred times as large. 32: what a record takes
# beside its contents.
_READ = """
SELECT "offset", (date_part('epoch', "timestamp") * 1000)::bigint, key, value, headers FROM (
    SELECT *, row_number() OVER rows AS number,
        sum(32 + coalesce(octet_length(key), 0) + coalesce(octet_length(value), 0) + CASE
                WHEN headers IS NULL THEN 0
                WHEN pg_column_compression(headers) IS NULL THEN pg_column_size(headers)
                ELSE octet_length(headers::text) END) OVER rows AS size
    FROM {table} WHERE topic_id = %s AND partition_id = %s AND "offset" >= %s
    WINDOW rows AS (ORDER BY "offset" ROWS UNBOUNDED PRECEDING) ORDER BY "offset" LIMIT %s
) sized WHERE size <= %s OR (number = 1 AND %s) ORDER BY "offset"
"""
_EXTENTS = """
SELECT topic_id, partition_id, log_start, next_offset FROM kafka.partitions
WHERE (topic_id, partition_id) IN (SELECT * FROM unnest(%s::int[], %s::int[]))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """The offsets of a partition: from `start` up to, and not including, `end`."""

    start: int
    end: int


@dataclass(slots=True)
class _Tail:
    """The last batches of a partition, without a gap between them."""

    first_offsets: deque[int] = field(default_factory=deque)
    batches: deque[bytes] = field(default_factory=deque)
    end: int = 0
    size: int = 0

    def add(self, first: int, count: int, data: bytes) -> None:
        self.first_offsets.append(first)
        self.batches.append(data)
        self.end = first + count
        self.size += len(data)

    def drop_oldest(self) -> int:
        """Drop the oldest batch; its size."""
        self.first_offsets.popleft()
        size = len(self.batches.popleft())
        self.size -= size
        return size


class Tails:
    """The last batches of all partitions, at most `max_bytes`; the least used go first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._tails: OrderedDict[PartitionKey, _Tail] = OrderedDict()
        self._size = 0

    def add(self, key: PartitionKey, first: int, count: int, data: bytes) -> None:
        """Add a committed batch of `count` records from offset `first` on."""
        tail = self._tails.get(key)
        if tail is None or tail.end != first:
            self._size -= tail.size if tail is not None else 0
            tail = self._tails[key] = _Tail()
        tail.add(first, count, records.with_base_offset(data, first))
        self._size += len(data)
        self._tails.move_to_end(key)
        while self._size > self._max_bytes:
            oldest = next(iter(self._tails.values()))
            self._size -= oldest.drop_oldest()
            if not oldest.batches:
                self._tails.popitem(last=False)

    def read(
        self, key: PartitionKey, offset: int, max_bytes: int, *, at_least_one: bool = True
    ) -> bytes | None:
        """Whole batches from the one that holds `offset`; None if it is not in memory."""
        tail = self._tails.get(key)
        if tail is None or not tail.batches or not tail.first_offsets[0] <= offset < tail.end:
            return None
        batches: list[bytes] = []
        size = 0
        at = bisect_right(tail.first_offsets, offset) - 1
        while at < len(tail.batches) and (
            size + len(tail.batches[at]) <= max_bytes or (at_least_one and not batches)
        ):
            batches.append(tail.batches[at])
            size += len(tail.batches[at])
            at += 1
        return b"".join(batches)

    def clear(self) -> None:
        """Drop everything: after a crash of PostgreSQL the tables may have other records."""
        self._tails.clear()
        self._size = 0


class Reader:
    """Reads partitions for consumers."""

    def __init__(self, pool: Pool, tails: Tails) -> None:
        self._pool = pool
        self._tails = tails

    async def extents(self, keys: Collection[PartitionKey]) -> dict[PartitionKey, Extent]:
        """The committed offsets of the partitions that exist."""
        columns = [list(column) for column in zip(*keys, strict=True)] or [[], []]
        async with self._pool.connection() as connection:
            cursor = await connection.execute(_EXTENTS, columns)
            rows = await cursor.fetchall()
        return {(row[0], row[1]): Extent(start=row[2], end=row[3]) for row in rows}

    async def extent(self, topic: Topic, partition: int) -> Extent | None:
        """The committed offsets of a partition; None if it does not exist."""
        key = (topic.id, partition)
        return (await self.extents([key])).get(key)

    async def read(
        self, topic: Topic, partition: int, offset: int, max_bytes: int, *, at_least_one: bool
    ) -> bytes:
        """Record batches from an offset on, of at most `max_bytes`.

        `at_least_one`: a batch or record that is larger is read too, alone.
        """
        key = (topic.id, partition)
        tail = self._tails.read(key, offset, max_bytes, at_least_one=at_least_one)
        if tail is not None:
            return tail
        async with self._pool.connection() as connection:
            return await _read_rows(
                connection, topic, partition, offset, max_bytes, at_least_one=at_least_one
            )


async def _read_rows(
    connection: Connection,
    topic: Topic,
    partition: int,
    offset: int,
    max_bytes: int,
    *,
    at_least_one: bool,
) -> bytes:
    batches: list[bytes] = []
    size = 0
    async with connection.cursor(binary=True) as cursor:
        while size < max_bytes:
            alone = at_least_one and not batches
            values = (topic.id, partition, offset, _ROWS, max_bytes - size, alone)
            await cursor.execute(_READ.format(table=topic.table), values)
            rows = await cursor.fetchall()
            if not rows:
                break
            batches.append(records.build_batch(rows))
            size += len(batches[-1])
            if len(rows) < _ROWS:
                break
            offset = rows[-1][0] + 1
    return b"".join(batches)
