"""Consuming: rows of a partition as record batches, and the tail of each partition from memory.

What this broker has written lately is kept as the producers sent it, compressed or not, and handed
out again without looking into it. Anything else is read from the table. Both hold the same records
at the same offsets, because a batch is kept only once its transaction has committed.
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
    from tailrace.broker.tables.pool import Connection, Pool
    from tailrace.broker.tables.writer import Place

_ROWS = 1000
# PostgreSQL knows the size of a value without reading it, so what is too much never gets here.
_READ = """
SELECT "offset", (date_part('epoch', "timestamp") * 1000)::bigint, key, value, headers FROM (
    SELECT *, sum(coalesce(octet_length(key), 0) + coalesce(octet_length(value), 0) + 16)
        OVER (ORDER BY "offset" ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
    FROM {table} WHERE topic_id = %s AND partition_id = %s AND "offset" >= %s
    ORDER BY "offset" LIMIT %s
) sized WHERE before IS NULL OR before < %s ORDER BY "offset"
"""
_EXTENTS = """
SELECT topic_id, partition_id, log_start, next_offset FROM kafka.partitions
WHERE (topic_id, partition_id) IN (SELECT * FROM unnest(%s::int[], %s::int[]))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """Which offsets a partition has."""

    start: int
    end: int


@dataclass(slots=True)
class _Tail:
    """The last batches of a partition, without a hole between them."""

    firsts: deque[int] = field(default_factory=deque)
    batches: deque[bytes] = field(default_factory=deque)
    end: int = 0
    size: int = 0


class Tails:
    """The last batches of all partitions, up to so many bytes; the least used go first."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._tails: OrderedDict[Place, _Tail] = OrderedDict()
        self._size = 0

    def add(self, place: Place, first: int, count: int, data: bytes) -> None:
        """A batch that is committed."""
        tail = self._tails.get(place)
        if tail is None or tail.end != first:
            self._size -= tail.size if tail is not None else 0
            tail = self._tails[place] = _Tail()
        tail.firsts.append(first)
        tail.batches.append(records.moved(data, first))
        tail.end = first + count
        tail.size += len(data)
        self._size += len(data)
        self._tails.move_to_end(place)
        while self._size > self._most_bytes:
            oldest = next(iter(self._tails.values()))
            self._size -= len(oldest.batches[0])
            oldest.size -= len(oldest.batches[0])
            oldest.firsts.popleft()
            oldest.batches.popleft()
            if not oldest.batches:
                self._tails.popitem(last=False)

    def read(self, place: Place, offset: int, most_bytes: int) -> bytes:
        """Whole batches from the one that holds an offset; nothing if it is not among them."""
        tail = self._tails.get(place)
        if tail is None or not tail.firsts or not tail.firsts[0] <= offset < tail.end:
            return b""
        found: list[bytes] = []
        size = 0
        at = bisect_right(tail.firsts, offset) - 1
        while at < len(tail.batches) and (not found or size + len(tail.batches[at]) <= most_bytes):
            found.append(tail.batches[at])
            size += len(tail.batches[at])
            at += 1
        return b"".join(found)

    def clear(self) -> None:
        """Forget everything: what the tables hold may be something else now."""
        self._tails.clear()
        self._size = 0


class Reader:
    """Reads partitions for consumers."""

    def __init__(self, pool: Pool, tails: Tails) -> None:
        self._pool = pool
        self._tails = tails

    async def extents(self, places: Collection[Place]) -> dict[Place, Extent]:
        """The committed offsets of those partitions that there are."""
        columns = [list(column) for column in zip(*places, strict=True)] or [[], []]
        async with self._pool.connection() as connection:
            cursor = await connection.execute(_EXTENTS, columns)
            rows = await cursor.fetchall()
        return {(row[0], row[1]): Extent(start=row[2], end=row[3]) for row in rows}

    async def extent(self, topic: Topic, partition: int) -> Extent | None:
        """The committed offsets of a partition, if there is one."""
        place = (topic.id, partition)
        return (await self.extents([place])).get(place)

    async def read(self, topic: Topic, partition: int, offset: int, most_bytes: int) -> bytes:
        """Record batches from an offset on: at least one record if there is any."""
        place = (topic.id, partition)
        if held := self._tails.read(place, offset, most_bytes):
            return held
        async with self._pool.connection() as connection:
            return await _rows(connection, topic, partition, offset, most_bytes)


async def _rows(
    connection: Connection, topic: Topic, partition: int, offset: int, most_bytes: int
) -> bytes:
    parts: list[bytes] = []
    size = 0
    async with connection.cursor(binary=True) as cursor:
        while size < most_bytes:
            values = (topic.id, partition, offset, _ROWS, most_bytes - size)
            await cursor.execute(_READ.format(table=topic.table), values)
            rows = await cursor.fetchall()
            if not rows:
                break
            parts.append(records.built(rows))
            size += len(parts[-1])
            if len(rows) < _ROWS:
                break
            offset = rows[-1][0] + 1
    return b"".join(parts)
