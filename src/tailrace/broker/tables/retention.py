"""Retention: deletes old records by age, by the size of their partition, or on request.

First `log_start` of the partition advances, in its own transaction: consumers no longer see the
records. Then the rows are deleted, some thousands per transaction, so that no transaction is long.
After a crash in between the next run deletes the remaining rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from psycopg.errors import LockNotAvailable

from tailrace.broker.tables import segments
from tailrace.broker.tables.configs import SETTINGS
from tailrace.broker.tables.pool import LOCK_TIMEOUT
from tailrace.errors import ConfigError

if TYPE_CHECKING:
    from tailrace.broker.tables.catalog import Topic
    from tailrace.broker.tables.pool import Connection, Pool

_ROWS_PER_TRANSACTION = 10_000
_ADVANCE = """
UPDATE kafka.partitions SET log_start = least(%s, next_offset)
WHERE (topic_id, partition_id) = (%s, %s) AND log_start < %s
"""
_DELETE = """
DELETE FROM {table} WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM {table}
    WHERE topic_id = %s AND partition_id = %s AND "offset" < %s ORDER BY "offset" LIMIT %s
))
"""
_EXTENT = (
    "SELECT log_start, next_offset FROM kafka.partitions WHERE (topic_id, partition_id) = (%s, %s)"
)
# Scans from the oldest record on and stops at the first that is young enough.
_FIRST_YOUNG = """
SELECT "offset" FROM {table}
WHERE topic_id = %s AND partition_id = %s AND "timestamp" >= now() - %s * interval '1 millisecond'
ORDER BY "offset" LIMIT 1
"""


async def delete_before(pool: Pool, topic: Topic, partition: int, end: int) -> bool:
    """Delete the records of a partition before offset `end`.

    False, and nothing is deleted, if a transaction of an application has locked the partition.
    """
    key = (topic.id, partition)
    async with pool.connection() as connection:
        try:
            async with connection.transaction():
                await connection.execute(LOCK_TIMEOUT)
                await connection.execute(_ADVANCE, (end, *key, end))
        except LockNotAvailable:
            return False
        query, values = _DELETE.format(table=topic.table), (*key, end, _ROWS_PER_TRANSACTION)
        while (await connection.execute(query, values)).rowcount == _ROWS_PER_TRANSACTION:
            pass
    return True


async def apply(pool: Pool, topic: Topic) -> None:
    """Delete what `retention.ms` and `retention.bytes` of a topic say.

    A partition that is locked is left to the next time.
    """
    for partition in range(topic.partitions):
        async with pool.connection() as connection:
            end = await _end(connection, topic, partition)
        if end is not None:
            await delete_before(pool, topic, partition, end)


async def _end(connection: Connection, topic: Topic, partition: int) -> int | None:
    """The offset before which records are deleted; None if the partition does not exist."""
    key = (topic.id, partition)
    row = await (await connection.execute(_EXTENT, key)).fetchone()
    if row is None:
        return None
    start, next_offset = row
    end = start
    max_age_ms = _limit(topic, "retention.ms")
    max_bytes = _limit(topic, "retention.bytes")
    if max_age_ms >= 0:
        query = _FIRST_YOUNG.format(table=topic.table)
        young = await (await connection.execute(query, (*key, max_age_ms))).fetchone()
        end = max(end, young[0] if young is not None else next_offset)
    if max_bytes >= 0:
        kept = await segments.first_to_keep(
            connection, topic, partition, start=start, end=next_offset, max_bytes=max_bytes
        )
        end = max(end, kept)
    return int(end)


def _limit(topic: Topic, name: str) -> int:
    value = topic.config.get(name, SETTINGS[name].default)
    if not SETTINGS[name].accepts(value):
        raise ConfigError(f"{name} of topic {topic.name} must be -1 or a number, got {value!r}")
    return int(value)
