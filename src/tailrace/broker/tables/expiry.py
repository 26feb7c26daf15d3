"""Expiry of what clients leave behind: the state of producers, and the offsets of groups.

As in Kafka, the state of an idempotent producer expires when it has not written to a partition for
`producer.id.expiration.ms`; its next batch is then accepted with any sequence number. The offsets
of a group expire when it has had no members, and has committed nothing, for
`offsets.retention.minutes`. `active_at` of the offsets of groups that have members is updated, so
that a group which only waits for records does not lose its offsets while its members restart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from tailrace.broker.tables.pool import Pool

_ROWS_PER_TRANSACTION = 10_000
# SKIP LOCKED: never wait for the writer, and never let it wait for long.
_EXPIRE_PRODUCERS = """
WITH expired AS (
    DELETE FROM kafka.producers WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM kafka.producers WHERE written_at < now() - %(age)s * interval '1 second'
        LIMIT %(rows)s FOR UPDATE SKIP LOCKED
    )) RETURNING producer_id
)
SELECT count(*), max(producer_id) FROM expired
"""
EXPIRED_UP_TO = """
WITH updated AS (
    UPDATE kafka.expired_producers SET producer_id = greatest(producer_id, %(id)s) RETURNING 1
)
INSERT INTO kafka.expired_producers SELECT %(id)s WHERE NOT EXISTS (SELECT FROM updated)
"""
_TOUCH = """
UPDATE kafka.consumer_offsets SET active_at = now()
WHERE group_id = ANY (%s) AND active_at < now() - %s * interval '1 second'
"""
_EXPIRE_OFFSETS = """
DELETE FROM kafka.consumer_offsets WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM kafka.consumer_offsets
    WHERE active_at < now() - %s * interval '1 second' AND group_id <> ALL (%s)
    LIMIT %s FOR UPDATE SKIP LOCKED
))
"""
_MAX_TOUCH_S = 3600.0


async def expire_producers(pool: Pool, max_age_s: float) -> int:
    """Delete the state of producers that have not written for so long; the number of rows."""
    values = {"age": max_age_s, "rows": _ROWS_PER_TRANSACTION}
    total = count = 0
    async with pool.connection() as connection:
        while not total or count == _ROWS_PER_TRANSACTION:
            async with connection.transaction():
                row = await (await connection.execute(_EXPIRE_PRODUCERS, values)).fetchone()
                count, last_id = row or (0, None)
                if not count:
                    break
                await connection.execute(EXPIRED_UP_TO, {"id": last_id})
            total += count
    return total


async def expire_offsets(pool: Pool, max_age_s: float, active: Collection[str]) -> int:
    """Delete the offsets of groups that have been without members for so long; their number.

    `active` are the groups that have members. Their rows are updated at most once per hour: so
    offsets expire up to an hour later.
    """
    groups, touch_s = list(active), min(max_age_s / 10, _MAX_TOUCH_S)
    values = (max_age_s + touch_s, groups, _ROWS_PER_TRANSACTION)
    total = count = 0
    async with pool.connection() as connection:
        if groups:
            await connection.execute(_TOUCH, (groups, touch_s))
        while not total or count == _ROWS_PER_TRANSACTION:
            count = (await connection.execute(_EXPIRE_OFFSETS, values)).rowcount
            if not count:
                break
            total += count
    return total
