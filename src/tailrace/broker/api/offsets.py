"""OffsetCommit and OffsetFetch: the offsets that groups have committed, in a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from tailrace.broker.api.requests import field_or
from tailrace.broker.auth.access import Operation
from tailrace.broker.membership import GroupError
from tailrace.broker.tables.committed import COMMIT

if TYPE_CHECKING:
    from tailrace.broker.api import Answer, Call
    from tailrace.broker.api.requests import CommitPartition, OffsetCommit, OffsetFetch
    from tailrace.broker.tables.catalog import Topic

    Row = tuple[int, int, int, int, str]
    """Topic id, partition, offset, leader epoch, metadata."""

_MAX_METADATA = 4096
_TOP_LEVEL_ERROR = 2
"""The first version of OffsetFetch whose response has an error for the whole request."""
_NOT_COMMITTED = (-1, -1, "")
_FETCH = """
SELECT t.name, o.partition_id, o."offset", o.leader_epoch, o.metadata
FROM kafka.consumer_offsets o JOIN kafka.topics t ON t.id = o.topic_id WHERE o.group_id = %s
ORDER BY 1, 2
"""


async def commit(call: Call[OffsetCommit]) -> Answer:
    """Commit all valid offsets of the request in one statement, and report an error per offset."""
    await call.broker.know([topic.name for topic in call.request.topics])
    async with call.broker.pool.connection() as connection:
        # Directly before the statement: the member may have expired meanwhile.
        topics, rows = _checked(call)
        if rows:
            columns = [list(column) for column in zip(*rows, strict=True)]
            await connection.execute(COMMIT, (call.request.group_id, *columns))
    return {"topics": topics}


def _checked(call: Call[OffsetCommit]) -> tuple[list[dict[str, Any]], list[Row]]:
    """An error for each offset, and the rows of those without."""
    group_error = _group_error(call)
    rows: list[Row] = []
    topics = []
    for topic in call.request.topics:
        allowed = call.may_topic(Operation.READ, topic.name)
        known = call.broker.catalog.topics.get(topic.name) if allowed else None
        parts = []
        for part in topic.partitions:
            error = _partition_error(part, known, allowed=allowed, group_error=group_error)
            if error is ErrorCode.none and known is not None:
                rows.append(_row(known, part))
            parts.append({"partition_index": part.partition_index, "error_code": error})
        topics.append({"name": topic.name, "partitions": parts})
    return topics, rows


def _group_error(call: Call[OffsetCommit]) -> ErrorCode:
    """Whether the user and the member may commit for the group at all."""
    request = call.request
    if not call.may_group(Operation.READ, request.group_id):
        return ErrorCode.group_authorization_failed
    try:
        call.broker.groups.check_commit(
            request.group_id,
            request.generation_id_or_member_epoch,
            request.member_id,
            instance=field_or(lambda: request.group_instance_id, None),
        )
    except GroupError as error:
        return ErrorCode[str(error)]
    return ErrorCode.none


def _partition_error(
    part: CommitPartition, topic: Topic | None, *, allowed: bool, group_error: ErrorCode
) -> ErrorCode:
    """The error of one offset. Kafka checks in this order, and clients depend on it:

    1. the user may not read the group    4. the metadata is too large
    2. the user may not read the topic    5. the member is not of this generation
    3. there is no such partition
    """
    if group_error is ErrorCode.group_authorization_failed:
        return group_error
    if not allowed:
        return ErrorCode.topic_authorization_failed
    if topic is None or not 0 <= part.partition_index < topic.partitions:
        return ErrorCode.unknown_topic_or_partition
    if len(part.committed_metadata or "") > _MAX_METADATA:
        return ErrorCode.offset_metadata_too_large
    return group_error


def _row(topic: Topic, part: CommitPartition) -> Row:
    epoch = field_or(lambda: part.committed_leader_epoch, -1)
    # PostgreSQL's text cannot hold a NUL.
    metadata = (part.committed_metadata or "").replace("\0", "")
    return topic.id, part.partition_index, part.committed_offset, epoch, metadata


async def fetch(call: Call[OffsetFetch]) -> Answer:
    """The committed offsets; -1 for a partition without one."""
    request = call.request
    if not call.may_group(Operation.DESCRIBE, request.group_id):
        return _denied(call)
    async with call.broker.pool.connection() as connection:
        cursor = await connection.execute(_FETCH, (request.group_id,))
        rows = await cursor.fetchall()
    committed: dict[str, dict[int, tuple[int, int, str]]] = {}
    for name, partition, offset, epoch, metadata in rows:
        committed.setdefault(name, {})[partition] = (offset, epoch, metadata)
    if request.topics is None:
        requested = [
            (name, list(parts))
            for name, parts in committed.items()
            if call.may_topic(Operation.DESCRIBE, name)
        ]
    else:
        requested = [(topic.name, list(topic.partition_indexes)) for topic in request.topics]
    topics = []
    for name, indexes in requested:
        allowed = call.may_topic(Operation.DESCRIBE, name)
        error = ErrorCode.none if allowed else ErrorCode.topic_authorization_failed
        offsets = committed.get(name, {}) if allowed else {}
        parts = [_part(index, error, *offsets.get(index, _NOT_COMMITTED)) for index in indexes]
        topics.append({"name": name, "partitions": parts})
    return {"topics": topics}


def _denied(call: Call[OffsetFetch]) -> Answer:
    """The error for the whole request, or in early versions for each of its partitions."""
    error = ErrorCode.group_authorization_failed
    topics = call.request.topics if call.version < _TOP_LEVEL_ERROR else None
    return {
        "error_code": error,
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    _part(index, error, *_NOT_COMMITTED) for index in topic.partition_indexes
                ],
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
