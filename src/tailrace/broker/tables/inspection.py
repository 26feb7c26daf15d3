"""What the tables show about the broker: topics, consumer groups with their lag, who serves them.

For the console and for commands, over a session of theirs: nothing here waits for a lock or reads
records. The broker itself has the same in memory.
"""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from tailrace.broker.membership import State
from tailrace.broker.tables.schema import BROKER_LOCK, INSTALLED, missing
from tailrace.observe.broker import (
    BrokerFigures,
    CommittedFigures,
    GroupFigures,
    MemberFigures,
    PartitionFigures,
    ServingFigures,
    StoreFigures,
    TopicFigures,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from psycopg import Connection

MOST_ROWS = 20_000
"""Of partitions, of committed offsets, and of groups with members."""
_TABLES = {False: "kafka.messages", True: "kafka.unlogged_messages"}
# A bigint key: pg_locks has its halves. Without pg_read_all_stats, a role does not see the session
# of another role.
_SERVING = """
SELECT CASE WHEN a.backend_start IS NULL THEN 'unknown'
    ELSE coalesce(host(a.client_addr), 'a local socket') END, l.pid, a.backend_start
FROM pg_locks l LEFT JOIN pg_stat_activity a USING (pid)
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
    AND l.classid = (%s::bigint >> 32)::oid AND l.objid = (%s::bigint & 4294967295)::oid
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
_STORES = "SELECT name, pg_total_relation_size(name::regclass) FROM unnest(%s::text[]) AS name"
_TOPICS = """
SELECT t.name, t.unlogged, NOT t.unlogged AND coalesce(s.enabled, true),
    p.partition_id, p.log_start, p.next_offset
FROM kafka.topics t JOIN kafka.partitions p ON p.topic_id = t.id
    LEFT JOIN kafka.shadow s ON s.topic_id = t.id
ORDER BY t.name, p.partition_id LIMIT %s
"""
_COMMITTED = """
SELECT o.group_id, t.name, o.partition_id, o."offset", p.next_offset, o.committed_at
FROM kafka.consumer_offsets o JOIN kafka.topics t ON t.id = o.topic_id
    JOIN kafka.partitions p USING (topic_id, partition_id)
ORDER BY o.group_id, t.name, o.partition_id LIMIT %s
"""
_GROUPS = """
SELECT group_id, state, generation, members FROM kafka.groups
WHERE group_id = %(group)s OR %(group)s::text IS NULL ORDER BY group_id LIMIT %(most)s
"""


def inspect(connection: Connection[Any], *, most: int = MOST_ROWS) -> BrokerFigures:
    """All figures. Raises ConfigError if the tables are missing, and errors of psycopg."""
    check_installed(connection)
    broker = serving(connection)
    present = members(connection, most=most) if broker is not None else {}
    partitions = connection.execute(_TOPICS, (most,)).fetchall()
    offsets = connection.execute(_COMMITTED, (most,)).fetchall()
    stores = connection.execute(_STORES, (list(_TABLES.values()),)).fetchall()
    return BrokerFigures(
        serving=broker,
        stores=tuple(StoreFigures(name=name, bytes=size) for name, size in stores),
        topics=tuple(_topics(partitions)),
        groups=tuple(_groups(offsets, present)),
        complete=max(len(partitions), len(offsets), len(present)) < most,
    )


def check_installed(connection: Connection[Any]) -> None:
    """Raise ConfigError if the tables are missing."""
    row = connection.execute(INSTALLED).fetchone()
    if row is None or row[0] is None:
        raise missing()


def serving(connection: Connection[Any]) -> ServingFigures | None:
    """The broker that holds the lock of the database."""
    row = connection.execute(_SERVING, (BROKER_LOCK, BROKER_LOCK)).fetchone()
    return None if row is None else ServingFigures(address=row[0], pid=row[1], since=row[2])


def members(
    connection: Connection[Any], group: str | None = None, *, most: int = MOST_ROWS
) -> dict[str, GroupFigures]:
    """The groups that have members, or one of them; without offsets. True while a broker serves."""
    rows = connection.execute(_GROUPS, {"group": group, "most": most}).fetchall()
    return {
        name: GroupFigures(
            name=name, state=state, generation=generation, lag=0, offsets=(),
            members=tuple(MemberFigures(**one) for one in found),
        )
        for name, state, generation, found in rows
    }  # fmt: skip


def _topics(rows: Sequence[tuple[Any, ...]]) -> Iterator[TopicFigures]:
    for (name, unlogged, copied), found in groupby(rows, key=itemgetter(0, 1, 2)):
        partitions = tuple(
            PartitionFigures(
                partition=partition, first_offset=first, end_offset=end, records=end - first
            )
            for *_, partition, first, end in found
        )
        yield TopicFigures(
            name=name,
            table=_TABLES[unlogged],
            copied=copied,
            records=sum(each.records for each in partitions),
            partitions=partitions,
        )


def _groups(
    rows: Sequence[tuple[Any, ...]], present: dict[str, GroupFigures]
) -> Iterator[GroupFigures]:
    committed = {
        name: tuple(
            CommittedFigures(
                topic=topic, partition=partition, committed_offset=offset, end_offset=end,
                lag=max(end - offset, 0), committed_at=at,
            )
            for _, topic, partition, offset, end, at in found
        )
        for name, found in groupby(rows, key=itemgetter(0))
    }  # fmt: skip
    for name in sorted({*committed, *present}):
        offsets, active = committed.get(name, ()), present.get(name)
        yield GroupFigures(
            name=name,
            state=active.state if active else State.EMPTY.value,
            generation=active.generation if active else None,
            members=active.members if active else (),
            lag=sum(each.lag for each in offsets),
            offsets=offsets,
        )
