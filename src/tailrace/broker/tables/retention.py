"""Old records go: by their age, by the size of their partition, or because somebody says so.

A partition first begins later, in a transaction of its own; then the rows go, some thousands at a
time, so that no transaction is long. A crash in between leaves rows that nobody is shown, and the
next look finds them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.broker.tables.configs import SETTINGS

if TYPE_CHECKING:
    from tailrace.broker.tables.catalog import Topic
    from tailrace.broker.tables.pool import Connection, Pool

_STEP = 10_000
_BEGIN = """
UPDATE kafka.partitions SET log_start = least(%s, next_offset)
WHERE (topic_id, partition_id) = (%s, %s) AND log_start < %s
"""
_PURGE = """
DELETE FROM {table} WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM {table}
    WHERE topic_id = %s AND partition_id = %s AND "offset" < %s ORDER BY "offset" LIMIT %s
))
"""
_STARTS = (
    "SELECT log_start, next_offset FROM kafka.partitions WHERE (topic_id, partition_id) = (%s, %s)"
)
# From the oldest on: as far as there are old ones, and one more.
_YOUNG = """
SELECT "offset" FROM {table}
WHERE topic_id = %s AND partition_id = %s AND "timestamp" >= now() - %s * interval '1 millisecond'
ORDER BY "offset" LIMIT 1
"""
# From the newest back: as far as there is room.
_FULL = """
SELECT "offset" FROM (
    SELECT "offset", sum(coalesce(octet_length(key), 0) + coalesce(octet_length(value), 0))
        OVER (ORDER BY "offset" DESC) AS size
    FROM {table} WHERE topic_id = %s AND partition_id = %s ORDER BY "offset" DESC
) sized WHERE size > %s ORDER BY "offset" DESC LIMIT 1
"""


async def cut(pool: Pool, topic: Topic, partition: int, upto: int) -> None:
    """A partition begins at an offset from now on."""
    place = (topic.id, partition)
    async with pool.connection() as connection:
        await connection.execute(_BEGIN, (upto, *place, upto))
        query = _PURGE.format(table=topic.table)
        while (await connection.execute(query, (*place, upto, _STEP))).rowcount == _STEP:
            pass


async def apply(pool: Pool, topic: Topic) -> None:
    """What the settings of a topic say of its partitions."""
    for partition in range(topic.partitions):
        async with pool.connection() as connection:
            upto = await _due(connection, topic, partition)
        if upto is not None:
            await cut(pool, topic, partition, upto)


async def _due(connection: Connection, topic: Topic, partition: int) -> int | None:
    """The offset that a partition should begin at; None if there is no such partition."""
    place = (topic.id, partition)
    row = await (await connection.execute(_STARTS, place)).fetchone()
    if row is None:
        return None
    upto, end = row
    age = int(topic.config.get("retention.ms", SETTINGS["retention.ms"].default))
    size = int(topic.config.get("retention.bytes", SETTINGS["retention.bytes"].default))
    if age >= 0:
        query = _YOUNG.format(table=topic.table)
        young = await (await connection.execute(query, (*place, age))).fetchone()
        upto = max(upto, young[0] if young is not None else end)
    if size >= 0:
        query = _FULL.format(table=topic.table)
        full = await (await connection.execute(query, (*place, size))).fetchone()
        upto = max(upto, full[0] + 1 if full is not None else 0)
    return int(upto)
