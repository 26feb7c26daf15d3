"""Metadata, and requests that create, grow, empty and delete topics."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode
from psycopg.errors import LockNotAvailable
from psycopg.types.json import Jsonb

from tailrace.broker.api.groups import NODE
from tailrace.broker.api.requests import field_or
from tailrace.broker.auth.access import Operation
from tailrace.broker.tables import configs, retention
from tailrace.broker.tables.pool import LOCK_TIMEOUT
from tailrace.errors import MalformedError, PostgresError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.broker.api import Answer, Call
    from tailrace.broker.api.requests import (
        CreatePartitions,
        CreateTopics,
        DeleteRecords,
        DeleteRecordsPartition,
        DeleteTopics,
        GrownTopic,
        Metadata,
        MetadataTopic,
        NewTopic,
    )
    from tailrace.broker.tables.catalog import Topic

_NAME = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}")
_MAX_PARTITIONS = 10_000
_MAX_CREATED = 100
"""Topics that one Metadata request creates."""
_BY_ID = 12
"""The first version of Metadata that looks topics up by id."""


async def metadata(call: Call[Metadata]) -> Answer:
    """This broker, and the requested topics; all topics if the request names none."""
    request, broker = call.request, call.broker
    if request.topics is None or (call.version == 0 and not request.topics):
        await broker.refresh()
        topics = [
            _description(topic)
            for topic in broker.catalog.topics.values()
            if call.may_topic(Operation.DESCRIBE, topic.name)
        ]
    else:
        # Each topic once: a name of a few bytes may have a response of a thousand partitions.
        requested = list(dict.fromkeys(request.topics))
        await broker.know([topic.name for topic in requested if topic.name is not None])
        await _create_missing(call, requested)
        topics = [_describe(call, topic) for topic in requested]
    return {
        "brokers": [{"node_id": NODE, "host": call.host, "port": call.port, "rack": None}],
        "cluster_id": broker.cluster,
        "controller_id": NODE,
        "topics": topics,
    }


async def _create_missing(call: Call[Metadata], requested: list[MetadataTopic]) -> None:
    """Create the requested topics that do not exist, if the client and the settings allow it.

    At most so many per request: a client asks again for topics that do not exist.
    """
    if not _auto_create(call):
        return
    names = [topic.name for topic in requested if topic.name is not None]
    missing = [
        name
        for name in names
        if name not in call.broker.catalog.topics
        and _NAME.fullmatch(name) is not None
        and call.may_topic(Operation.DESCRIBE, name)
        and _may_create(call, name)
    ]
    for name in missing[:_MAX_CREATED]:
        # Another client may create it at the same time.
        with contextlib.suppress(PostgresError):
            await _insert(call, name, call.broker.settings.partitions, {})
    await call.broker.know(missing[:_MAX_CREATED])


def _describe(call: Call[Metadata], requested: MetadataTopic) -> dict[str, Any]:
    name = requested.name
    if name is None:
        return _describe_by_id(call, requested)
    missing = {"name": name, "topic_id": None, "partitions": ()}
    if not call.may_topic(Operation.DESCRIBE, name):
        return missing | {"error_code": ErrorCode.topic_authorization_failed}
    topic = call.broker.catalog.topics.get(name)
    if topic is not None:
        return _description(topic)
    if _NAME.fullmatch(name) is None:
        return missing | {"error_code": ErrorCode.invalid_topic_exception}
    if _auto_create(call) and not _may_create(call, name):
        return missing | {"error_code": ErrorCode.topic_authorization_failed}
    return missing | {"error_code": ErrorCode.unknown_topic_or_partition}


def _auto_create(call: Call[Metadata]) -> bool:
    allowed = field_or(lambda: call.request.allow_auto_topic_creation, True)
    return call.broker.settings.auto_create and allowed


def _describe_by_id(call: Call[Metadata], requested: MetadataTopic) -> dict[str, Any]:
    if call.version < _BY_ID:
        raise MalformedError("a Metadata request has a topic without a name")
    topic_id = field_or(lambda: requested.topic_id, None)
    known = call.broker.catalog.by_id.get(topic_id) if topic_id is not None else None
    if known is None or not call.may_topic(Operation.DESCRIBE, known.name):
        missing = {"name": None, "topic_id": requested.topic_id, "partitions": ()}
        return missing | {"error_code": ErrorCode.unknown_topic_id}
    return _description(known)


def _description(topic: Topic) -> dict[str, Any]:
    return {
        "name": topic.name,
        "topic_id": topic.uuid,
        "partitions": [
            {
                "partition_index": number,
                "leader_id": NODE,
                "leader_epoch": 0,
                "replica_nodes": (NODE,),
                "isr_nodes": (NODE,),
                "offline_replicas": (),
            }
            for number in range(topic.partitions)
        ],
    }


def _may_create(call: Call[Any], name: str) -> bool:
    return call.may_cluster(Operation.CREATE) or call.may_topic(Operation.CREATE, name)


async def _insert(
    call: Call[Any], name: str, partitions: int, config: Mapping[str, str | None]
) -> None:
    unlogged = config.get("tailrace.unlogged") == "true"
    query = "SELECT kafka.create_topic(%s, %s, %s, %s)"
    async with call.broker.pool.connection() as connection:
        await connection.execute(query, (name, partitions, Jsonb(config), unlogged))
        await call.broker.catalog.refresh(connection)


async def create(call: Call[CreateTopics]) -> Answer:
    """Create each topic by itself."""
    return {"topics": [await _create(call, topic) for topic in call.request.topics]}


async def _create(call: Call[CreateTopics], topic: NewTopic) -> dict[str, Any]:
    partitions = topic.num_partitions
    if partitions == -1:
        partitions = call.broker.settings.partitions
    if topic.assignments:
        partitions = len(topic.assignments)
    response: dict[str, Any] = {
        "name": topic.name, "topic_id": None, "num_partitions": partitions,
        "replication_factor": 1, "configs": (),
    }  # fmt: skip
    if not call.may_topic(Operation.DESCRIBE_CONFIGS, topic.name):
        # As in Kafka: the numbers are part of the settings, which this user may not read.
        response |= {
            "num_partitions": -1,
            "replication_factor": -1,
            "topic_config_error_code": ErrorCode.topic_authorization_failed,
        }
    error, message = await _check_new(call, topic, partitions)
    if error is ErrorCode.none and not call.request.validate_only:
        try:
            await _insert(call, topic.name, partitions, _config(topic))
        except PostgresError as failed:
            error, message = ErrorCode.kafka_storage_error, str(failed)
            if await call.broker.topic(topic.name) is not None:
                error = ErrorCode.topic_already_exists
        else:
            response["topic_id"] = call.broker.catalog.topics[topic.name].uuid
    return response | {"error_code": error, "error_message": message or None}


def _config(topic: NewTopic) -> dict[str, str | None]:
    return {setting.name: setting.value for setting in topic.configs}


async def _check_new(
    call: Call[CreateTopics], topic: NewTopic, partitions: int
) -> tuple[ErrorCode, str]:
    """The error and its message if the topic cannot be created."""
    error, message = ErrorCode.none, ""
    if not _may_create(call, topic.name):
        error = ErrorCode.topic_authorization_failed
    elif _NAME.fullmatch(topic.name) is None:
        error = ErrorCode.invalid_topic_exception
    elif await call.broker.topic(topic.name) is not None:
        error, message = ErrorCode.topic_already_exists, f"topic {topic.name} already exists"
    elif not 1 <= partitions <= _MAX_PARTITIONS:
        error = ErrorCode.invalid_partitions
    elif topic.replication_factor not in {-1, 1} and not topic.assignments:
        error = ErrorCode.invalid_replication_factor
        message = "replication factor must be 1 or -1: PostgreSQL replicates the tables"
    elif message := configs.problem(_config(topic)):
        error = ErrorCode.invalid_config
    return error, message


async def delete(call: Call[DeleteTopics]) -> Answer:
    """Delete topics with all of their records."""
    responses = []
    await call.broker.know(call.request.topic_names)
    for name in call.request.topic_names:
        visible = call.may_topic(Operation.DESCRIBE, name)
        topic = call.broker.catalog.topics.get(name) if visible else None
        error = ErrorCode.none
        if visible and topic is None:
            error = ErrorCode.unknown_topic_or_partition
        elif topic is None or not call.may_topic(Operation.DELETE, name):
            error = ErrorCode.topic_authorization_failed
        elif not await _delete(call, topic):
            error = ErrorCode.request_timed_out
        responses.append({"name": name, "error_code": error})
    return {"responses": responses}


async def _delete(call: Call[DeleteTopics], topic: Topic) -> bool:
    """Delete a topic. False if a transaction of an application has locked one of its partitions."""
    async with call.broker.pool.connection() as connection:
        try:
            async with connection.transaction():
                await connection.execute(LOCK_TIMEOUT)
                # First what the writer locks first: its foreign keys need the topic's row, too.
                await connection.execute(
                    "SELECT FROM kafka.partitions WHERE topic_id = %s FOR UPDATE", (topic.id,)
                )
                await connection.execute("DELETE FROM kafka.topics WHERE id = %s", (topic.id,))
                await connection.execute(
                    f"DELETE FROM {topic.table} WHERE topic_id = %s",  # noqa: S608 - a constant
                    (topic.id,),
                )
                await connection.execute("NOTIFY tailrace_kafka, 'topics'")
        except LockNotAvailable:
            return False
    await call.broker.refresh()
    return True


async def create_partitions(call: Call[CreatePartitions]) -> Answer:
    """Add partitions to topics. Partitions are never removed."""
    return {"results": [await _grow(call, topic) for topic in call.request.topics]}


async def _grow(call: Call[CreatePartitions], requested: GrownTopic) -> dict[str, Any]:
    allowed = call.may_topic(Operation.ALTER, requested.name)
    topic = await call.broker.topic(requested.name) if allowed else None
    error = ErrorCode.none
    if not allowed:
        error = ErrorCode.topic_authorization_failed
    elif topic is None:
        error = ErrorCode.unknown_topic_or_partition
    elif not topic.partitions < requested.count <= _MAX_PARTITIONS:
        error = ErrorCode.invalid_partitions
    elif not call.request.validate_only:
        async with call.broker.pool.connection() as connection, connection.transaction():
            await connection.execute(
                "INSERT INTO kafka.partitions (topic_id, partition_id)"
                " SELECT %s, n FROM generate_series(%s::int, %s::int) n ON CONFLICT DO NOTHING",
                (topic.id, topic.partitions, requested.count - 1),
            )
            await connection.execute(
                "UPDATE kafka.topics SET partitions = greatest(partitions, %s) WHERE id = %s",
                (requested.count, topic.id),
            )
            await connection.execute("NOTIFY tailrace_kafka, 'topics'")
        await call.broker.refresh()
    return {"name": requested.name, "error_code": error}


async def delete_records(call: Call[DeleteRecords]) -> Answer:
    """Delete the records before an offset; -1 deletes all."""
    topics = []
    for topic in call.request.topics:
        if call.may_topic(Operation.DELETE, topic.name):
            known = await call.broker.topic(topic.name)
            parts = [await _delete_before(call, known, part) for part in topic.partitions]
        else:
            error = ErrorCode.topic_authorization_failed
            parts = [
                {"partition_index": part.partition_index, "low_watermark": -1, "error_code": error}
                for part in topic.partitions
            ]
        topics.append({"name": topic.name, "partitions": parts})
    return {"topics": topics}


async def _delete_before(
    call: Call[DeleteRecords], topic: Topic | None, part: DeleteRecordsPartition
) -> dict[str, Any]:
    response = {"partition_index": part.partition_index, "low_watermark": -1}
    reader = call.broker.reader
    extent = await reader.extent(topic, part.partition_index) if topic is not None else None
    if topic is None or extent is None:
        return response | {"error_code": ErrorCode.unknown_topic_or_partition}
    end = extent.end if part.offset == -1 else part.offset
    if not 0 <= end <= extent.end:
        return response | {"error_code": ErrorCode.offset_out_of_range}
    if not await retention.delete_before(call.broker.pool, topic, part.partition_index, end):
        return response | {"error_code": ErrorCode.request_timed_out}
    return response | {"low_watermark": max(end, extent.start), "error_code": ErrorCode.none}
