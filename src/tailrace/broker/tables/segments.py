"""Sizes of partitions for `retention.bytes`, without summing all of their records every time.

`kafka.segments` has the bytes of every 10,000 consecutive offsets. Records do not change once they
are committed, and no record becomes visible before one with a smaller offset. So every record is
summed once, after it was committed, and a search reads one row per segment, and the records of the
one segment in which the limit lies.

Records that were deleted or changed with SQL stay counted with the size that they had.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace.broker.tables.catalog import Topic
    from tailrace.broker.tables.pool import Connection

_SEGMENT = 10_000
"""Offsets per segment. The tables depend on it: it must not change."""
_SEGMENTS_PER_TRANSACTION = 20
_SIZE = "coalesce(octet_length(key), 0) + coalesce(octet_length(value), 0)"
_COUNTED_TO = """
SELECT counted_to FROM kafka.segments WHERE topic_id = %s AND partition_id = %s
ORDER BY segment DESC LIMIT 1
"""
_COUNT = f"""
INSERT INTO kafka.segments AS s (topic_id, partition_id, segment, counted_to, bytes)
SELECT topic_id, partition_id, "offset" / {_SEGMENT}, max("offset") + 1, sum({_SIZE})
FROM {{table}} WHERE topic_id = %s AND partition_id = %s AND "offset" >= %s AND "offset" < %s
GROUP BY 1, 2, 3
ON CONFLICT (topic_id, partition_id, segment) DO UPDATE
SET counted_to = excluded.counted_to, bytes = s.bytes + excluded.bytes
"""  # noqa: S608 - constants
# The last offsets may have no records, if they were deleted with SQL.
_COUNTED = """
INSERT INTO kafka.segments VALUES (%s, %s, %s, %s, 0)
ON CONFLICT (topic_id, partition_id, segment) DO UPDATE SET counted_to = excluded.counted_to
"""
# Sums from the newest segment back; the result is the newest one that does not fit as a whole, and
# what fits of it.
_CROSSING = """
SELECT segment, %s - size + bytes FROM (
    SELECT segment, bytes, sum(bytes) OVER (ORDER BY segment DESC) AS size
    FROM kafka.segments WHERE topic_id = %s AND partition_id = %s
) sized WHERE size > %s ORDER BY segment DESC LIMIT 1
"""
_LAST_OVER_SIZE = f"""
SELECT "offset" FROM (
    SELECT "offset", sum({_SIZE}) OVER (ORDER BY "offset" DESC) AS size
    FROM {{table}} WHERE topic_id = %s AND partition_id = %s AND "offset" >= %s AND "offset" < %s
) sized WHERE size > %s ORDER BY "offset" DESC LIMIT 1
"""  # noqa: S608 - constants
_FORGET = """
DELETE FROM kafka.segments
WHERE topic_id = %s AND partition_id = %s AND (segment + 1) * %s <= %s
"""


async def first_to_keep(
    connection: Connection, topic: Topic, partition: int, *, start: int, end: int, max_bytes: int
) -> int:
    """The first of the newest offsets of a partition whose records have at most `max_bytes`.

    The partition has the offsets from `start` up to, and not including, `end`.
    """
    key = (topic.id, partition)
    await connection.execute(_FORGET, (*key, _SEGMENT, start))
    await _count(connection, topic, partition, start, end)
    cursor = await connection.execute(_CROSSING, (max_bytes, *key, max_bytes))
    crossing = await cursor.fetchone()
    if crossing is None:
        return start
    segment, left = int(crossing[0]), int(crossing[1])
    first, next_first = segment * _SEGMENT, (segment + 1) * _SEGMENT
    query = _LAST_OVER_SIZE.format(table=topic.table)
    values = (*key, max(first, start), next_first, left)
    over = await (await connection.execute(query, values)).fetchone()
    # Without such a record a part of the segment is deleted already, and the rest of it fits.
    return max(first, start) if over is None else int(over[0]) + 1


async def _count(
    connection: Connection, topic: Topic, partition: int, start: int, end: int
) -> None:
    """Count the records that were committed since the last time."""
    key = (topic.id, partition)
    (last,) = await (await connection.execute(_COUNTED_TO, key)).fetchone() or (0,)
    counted_to = max(int(last), start)
    if counted_to >= end:
        return
    query = _COUNT.format(table=topic.table)
    while counted_to < end:
        # Up to the end of a segment, at most so many of them.
        upto = min(end, (counted_to // _SEGMENT + _SEGMENTS_PER_TRANSACTION) * _SEGMENT)
        await connection.execute(query, (*key, counted_to, upto))
        counted_to = upto
    await connection.execute(_COUNTED, (*key, (end - 1) // _SEGMENT, end))
