"""Offsets that groups have committed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from tailrace.broker.auth.access import Operation
from tailrace.broker.groups import GroupError

if TYPE_CHECKING:
    from tailrace.broker.api import Answer, Call

_MOST_METADATA = 4096
_ERROR_AT_TOP = 2
"""The version of OffsetFetch from which a request as a whole can fail."""
_NOTHING = (-1, -1, "")
_COMMIT = """
INSERT INTO kafka.consumer_offsets
    (group_id, topic_id, partition_id, "offset", leader_epoch, metadata)
SELECT %s, * FROM unnest(%s::int[], %s::int[], %s::bigint[], %s::int[], %s::text[])
ON CONFLICT (group_id, topic_id, partition_id) DO UPDATE SET
    "offset" = excluded."offset", leader_epoch = excluded.leader_epoch,
    metadata = excluded.metadata, committed_at = now()
"""
_FETCH = """
SELECT t.name, o.partition_id, o."offset", o.leader_epoch, o.metadata
FROM kafka.consumer_offsets o JOIN kafka.topics t ON t.id = o.topic_id WHERE o.group_id = %s
ORDER BY 1, 2
"""


async def commit(call: Call) -> Answer:
    """All of a request's offsets in one statement."""
    request = call.request
    try:
        if not call.may_group(Operation.READ, request.group_id):
            raise GroupError("group_authorization_failed")
        call.broker.groups.may_commit(
            request.group_id,
            request.generation_id_or_member_epoch,
            request.member_id,
            instance=getattr(request, "group_instance_id", None),
        )
        refused = ErrorCode.none
    except GroupError as failed:
        refused = ErrorCode[str(failed)]
    rows: list[tuple[int, int, int, int, str]] = []
    answers = []
    for topic in request.topics:
        allowed = call.may_topic(Operation.READ, topic.name)
        known = await call.broker.topic(topic.name) if allowed else None
        parts = []
        for each in topic.partitions:
            error = refused
            metadata = each.committed_metadata or ""
            if error is ErrorCode.group_authorization_failed:
                pass
            elif not allowed:
                error = ErrorCode.topic_authorization_failed
            elif known is None or not 0 <= each.partition_index < known.partitions:
                error = ErrorCode.unknown_topic_or_partition
            elif len(metadata) > _MOST_METADATA:
                error = ErrorCode.offset_metadata_too_large
            elif error is ErrorCode.none:
                epoch = getattr(each, "committed_leader_epoch", -1)
                place = (known.id, each.partition_index)
                rows.append((*place, each.committed_offset, epoch, metadata.replace("\0", "")))
            parts.append({"partition_index": each.partition_index, "error_code": error})
        answers.append({"name": topic.name, "partitions": parts})
    if rows:
        columns = [list(column) for column in zip(*rows, strict=True)]
        async with call.broker.pool.connection() as connection:
            await connection.execute(_COMMIT, (request.group_id, *columns))
    return {"topics": answers}


async def fetch(call: Call) -> Answer:
    """What is committed; -1 where nothing is."""
    request = call.request
    if not call.may_group(Operation.DESCRIBE, request.group_id):
        return _refused(call)
    async with call.broker.pool.connection() as connection:
        cursor = await connection.execute(_FETCH, (request.group_id,))
        rows = await cursor.fetchall()
    held: dict[str, dict[int, Any]] = {}
    for name, partition, *committed in rows:
        held.setdefault(name, {})[partition] = committed
    if request.topics is None:
        wanted = [(name, list(parts)) for name, parts in held.items()]
        wanted = [each for each in wanted if call.may_topic(Operation.DESCRIBE, each[0])]
    else:
        wanted = [(topic.name, list(topic.partition_indexes)) for topic in request.topics]
    topics = []
    for name, indexes in wanted:
        allowed = call.may_topic(Operation.DESCRIBE, name)
        error = ErrorCode.none if allowed else ErrorCode.topic_authorization_failed
        found = held.get(name, {}) if allowed else {}
        parts = [_part(index, error, *found.get(index, _NOTHING)) for index in indexes]
        topics.append({"name": name, "partitions": parts})
    return {"topics": topics}


def _refused(call: Call) -> Answer:
    """At the top, or before there was such a place with every partition."""
    error = ErrorCode.group_authorization_failed
    topics = call.request.topics if call.version < _ERROR_AT_TOP else None
    return {
        "error_code": error,
        "topics": [
            {
                "name": topic.name,
                "partitions": [_part(index, error, *_NOTHING) for index in topic.partition_indexes],
            }
            for topic in topics or ()
        ],
    }


def _part(index: int, error: ErrorCode, offset: int, epoch: int, metadata: str) -> dict[str, Any]:
    return {
        "partition_index": index,
        "committed_offset": offset,
        "committed_leader_epoch": epoch,
        "metadata": metadata,
        "error_code": error,
    }
