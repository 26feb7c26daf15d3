"""Metadata, and the making and unmaking of topics."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode
from psycopg.types.json import Jsonb

from tailrace.broker.api.groups import NODE
from tailrace.broker.auth.access import Operation
from tailrace.broker.tables import configs, retention
from tailrace.errors import MalformedError, PostgresError

if TYPE_CHECKING:
    from tailrace.broker.api import Answer, Call
    from tailrace.broker.tables.catalog import Topic

_NAME = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}")
_MOST_PARTITIONS = 10_000
_TOPIC = 2
_BY_ID = 12
"""The version from which topics are asked for by their ids."""
_SET, _DELETE = 0, 1
_OF_TOPIC, _DEFAULT = 1, 5
_CLUSTER_DENIED = {"error_code": ErrorCode.cluster_authorization_failed}


async def metadata(call: Call) -> Answer:
    """One broker, and the topics that are asked for: all of them if none is named."""
    request, broker = call.request, call.broker
    if request.topics is None or (call.version == 0 and not request.topics):
        await broker.refresh()
        topics = [
            _shown(topic)
            for topic in broker.catalog.topics.values()
            if call.may_topic(Operation.DESCRIBE, topic.name)
        ]
    else:
        # Once each: the answer to a name may be a thousand times its size.
        topics = [await _asked(call, each) for each in dict.fromkeys(request.topics)]
    return {
        "brokers": [{"node_id": NODE, "host": call.host, "port": call.port, "rack": None}],
        "cluster_id": broker.cluster,
        "controller_id": NODE,
        "topics": topics,
    }


async def _asked(call: Call, asked: Any) -> dict[str, Any]:
    broker, name = call.broker, asked.name
    if name is None:
        return _asked_by_id(call, asked)
    missing = {"name": name, "topic_id": None, "partitions": ()}
    if not call.may_topic(Operation.DESCRIBE, name):
        return missing | {"error_code": ErrorCode.topic_authorization_failed}
    topic = await broker.topic(name)
    if topic is None and _NAME.fullmatch(name) is None:
        return missing | {"error_code": ErrorCode.invalid_topic_exception}
    if (
        topic is None
        and broker.settings.auto_create
        and getattr(call.request, "allow_auto_topic_creation", True)
    ):
        if not _may_create(call, name):
            return missing | {"error_code": ErrorCode.topic_authorization_failed}
        # Somebody else may be quicker.
        with contextlib.suppress(PostgresError):
            await _make(call, name, broker.settings.partitions, {})
        topic = await broker.topic(name)
    if topic is None:
        return missing | {"error_code": ErrorCode.unknown_topic_or_partition}
    return _shown(topic)


def _asked_by_id(call: Call, asked: Any) -> dict[str, Any]:
    if call.version < _BY_ID:
        raise MalformedError("metadata of a topic without a name")
    topics = call.broker.catalog.topics.values()
    known = next((topic for topic in topics if topic.uuid == asked.topic_id), None)
    if known is None or not call.may_topic(Operation.DESCRIBE, known.name):
        missing = {"name": None, "topic_id": asked.topic_id, "partitions": ()}
        return missing | {"error_code": ErrorCode.unknown_topic_id}
    return _shown(known)


def _shown(topic: Topic) -> dict[str, Any]:
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


def _may_create(call: Call, name: str) -> bool:
    return call.may_cluster(Operation.CREATE) or call.may_topic(Operation.CREATE, name)


async def _make(call: Call, name: str, partitions: int, config: dict[str, str]) -> None:
    unlogged = config.get("tailrace.unlogged") == "true"
    query = "SELECT kafka.create_topic(%s, %s, %s, %s)"
    async with call.broker.pool.connection() as connection:
        await connection.execute(query, (name, partitions, Jsonb(config), unlogged))
        await call.broker.catalog.refresh(connection)


async def create(call: Call) -> Answer:
    """Each topic by itself."""
    return {"topics": [await _created(call, each) for each in call.request.topics]}


async def _created(call: Call, each: Any) -> dict[str, Any]:
    partitions = (
        each.num_partitions if each.num_partitions != -1 else call.broker.settings.partitions
    )
    if each.assignments:
        partitions = len(each.assignments)
    config = {setting.name: setting.value for setting in each.configs}
    result = {
        "name": each.name, "topic_id": None, "error_message": None, "num_partitions": partitions,
        "replication_factor": 1, "configs": (),
    }  # fmt: skip
    if not call.may_topic(Operation.DESCRIBE_CONFIGS, each.name):
        # It was told with the settings, which are not for everybody.
        result |= {
            "num_partitions": -1,
            "replication_factor": -1,
            "topic_config_error_code": ErrorCode.topic_authorization_failed,
        }
    error, said = ErrorCode.none, ""
    if not _may_create(call, each.name):
        error = ErrorCode.topic_authorization_failed
    elif _NAME.fullmatch(each.name) is None:
        error = ErrorCode.invalid_topic_exception
    elif await call.broker.topic(each.name) is not None:
        error, said = ErrorCode.topic_already_exists, f"topic {each.name} exists"
    elif not 1 <= partitions <= _MOST_PARTITIONS:
        error = ErrorCode.invalid_partitions
    elif each.replication_factor not in {-1, 1} and not each.assignments:
        error, said = ErrorCode.invalid_replication_factor, "PostgreSQL replicates: write 1 or -1"
    elif said := configs.wrong(config):
        error = ErrorCode.invalid_config
    elif not call.request.validate_only:
        try:
            await _make(call, each.name, partitions, config)
        except PostgresError as failed:
            error, said = ErrorCode.kafka_storage_error, str(failed)
            if await call.broker.topic(each.name) is not None:
                error = ErrorCode.topic_already_exists
        else:
            result["topic_id"] = call.broker.catalog.topics[each.name].uuid
    return result | {"error_code": error, "error_message": said or None}


async def delete(call: Call) -> Answer:
    """A topic and all of its records."""
    answers = []
    for name in call.request.topic_names:
        seen = call.may_topic(Operation.DESCRIBE, name)
        topic = await call.broker.topic(name) if seen else None
        error = ErrorCode.none
        if seen and topic is None:
            error = ErrorCode.unknown_topic_or_partition
        elif topic is None or not call.may_topic(Operation.DELETE, name):
            error = ErrorCode.topic_authorization_failed
        else:
            async with call.broker.pool.connection() as connection, connection.transaction():
                await connection.execute("DELETE FROM kafka.topics WHERE id = %s", (topic.id,))
                await connection.execute(
                    f"DELETE FROM {topic.table} WHERE topic_id = %s",  # noqa: S608 - one of two names of ours
                    (topic.id,),
                )
                await connection.execute("NOTIFY tailrace_kafka, 'topics'")
            await call.broker.refresh()
        answers.append({"name": name, "error_code": error})
    return {"responses": answers}


async def create_partitions(call: Call) -> Answer:
    """More partitions for a topic; never fewer."""
    return {"results": [await _grown(call, each) for each in call.request.topics]}


async def _grown(call: Call, each: Any) -> dict[str, Any]:
    allowed = call.may_topic(Operation.ALTER, each.name)
    topic = await call.broker.topic(each.name) if allowed else None
    error = ErrorCode.none
    if not allowed:
        error = ErrorCode.topic_authorization_failed
    elif topic is None:
        error = ErrorCode.unknown_topic_or_partition
    elif not topic.partitions < each.count <= _MOST_PARTITIONS:
        error = ErrorCode.invalid_partitions
    elif not call.request.validate_only:
        async with call.broker.pool.connection() as connection, connection.transaction():
            await connection.execute(
                "INSERT INTO kafka.partitions (topic_id, partition_id)"
                " SELECT %s, n FROM generate_series(%s::int, %s::int) n ON CONFLICT DO NOTHING",
                (topic.id, topic.partitions, each.count - 1),
            )
            await connection.execute(
                "UPDATE kafka.topics SET partitions = greatest(partitions, %s) WHERE id = %s",
                (each.count, topic.id),
            )
            await connection.execute("NOTIFY tailrace_kafka, 'topics'")
        await call.broker.refresh()
    return {"name": each.name, "error_code": error}


async def delete_records(call: Call) -> Answer:
    """Everything before an offset; -1 means all there is."""
    answers = []
    for topic in call.request.topics:
        if call.may_topic(Operation.DELETE, topic.name):
            known = await call.broker.topic(topic.name)
            parts = [await _cut(call, known, each) for each in topic.partitions]
        else:
            error = ErrorCode.topic_authorization_failed
            parts = [
                {"partition_index": each.partition_index, "low_watermark": -1, "error_code": error}
                for each in topic.partitions
            ]
        answers.append({"name": topic.name, "partitions": parts})
    return {"topics": answers}


async def _cut(call: Call, topic: Topic | None, each: Any) -> dict[str, Any]:
    part = {"partition_index": each.partition_index, "low_watermark": -1}
    reader = call.broker.reader
    extent = await reader.extent(topic, each.partition_index) if topic is not None else None
    if topic is None or extent is None:
        return part | {"error_code": ErrorCode.unknown_topic_or_partition}
    upto = extent.end if each.offset == -1 else each.offset
    if not 0 <= upto <= extent.end:
        return part | {"error_code": ErrorCode.offset_out_of_range}
    await retention.cut(call.broker.pool, topic, each.partition_index, upto)
    return part | {"low_watermark": max(upto, extent.start), "error_code": ErrorCode.none}


async def describe_configs(call: Call) -> Answer:
    """The settings of topics."""
    asked = dict.fromkeys(call.request.resources)
    return {"results": [await _configs(call, each) for each in asked]}


async def _configs(call: Call, each: Any) -> dict[str, Any]:
    result = {
        "error_message": None, "resource_type": each.resource_type,
        "resource_name": each.resource_name, "configs": (),
    }  # fmt: skip
    if each.resource_type != _TOPIC:
        allowed = call.may_cluster(Operation.DESCRIBE_CONFIGS)
        return result if allowed else result | _CLUSTER_DENIED
    if not call.may_topic(Operation.DESCRIBE_CONFIGS, each.resource_name):
        return result | {"error_code": ErrorCode.topic_authorization_failed}
    topic = await call.broker.topic(each.resource_name)
    if topic is None:
        return result | {"error_code": ErrorCode.unknown_topic_or_partition}
    wanted = each.configuration_keys
    return result | {
        "configs": [
            {
                "name": name,
                "value": topic.config.get(name, setting.default),
                "read_only": name == "tailrace.unlogged",
                "is_default": name not in topic.config,
                "config_source": _OF_TOPIC if name in topic.config else _DEFAULT,
                "is_sensitive": False,
                "synonyms": (),
                "config_type": setting.type,
                "documentation": setting.meaning,
            }
            for name, setting in configs.SETTINGS.items()
            if not wanted or name in wanted
        ]
    }


async def alter_configs(call: Call) -> Answer:
    """Settings of topics, one by one."""
    return {"responses": [await _altered(call, each) for each in call.request.resources]}


async def replace_configs(call: Call) -> Answer:
    """Settings of topics, all at once: those that are not named are as by default."""
    return {"responses": [await _replaced(call, each) for each in call.request.resources]}


async def _altered(call: Call, each: Any) -> dict[str, Any]:
    if denied := _no_right(call, each):
        return denied
    topic = await _configured(call, each)
    if topic is None:
        return _resource(each) | {"error_code": ErrorCode.unknown_topic_or_partition}
    config: dict[str, str | None] = {**topic.config}
    for change in each.configs:
        if change.config_operation not in {_SET, _DELETE} or change.name == "tailrace.unlogged":
            return _resource(each) | {"error_code": ErrorCode.invalid_config}
        if change.config_operation == _SET:
            config[change.name] = change.value
        else:
            config.pop(change.name, None)
    return await _stored(call, each, topic, config)


async def _replaced(call: Call, each: Any) -> dict[str, Any]:
    if denied := _no_right(call, each):
        return denied
    topic = await _configured(call, each)
    if topic is None:
        return _resource(each) | {"error_code": ErrorCode.unknown_topic_or_partition}
    config = {change.name: change.value for change in each.configs}
    kept = topic.config.get("tailrace.unlogged")
    if config.get("tailrace.unlogged", kept) != kept:
        return _resource(each) | {"error_code": ErrorCode.invalid_config}
    if kept is not None:
        config["tailrace.unlogged"] = kept
    return await _stored(call, each, topic, config)


def _no_right(call: Call, each: Any) -> dict[str, Any] | None:
    """The answer to who may not alter these settings."""
    if each.resource_type != _TOPIC:
        allowed = call.may_cluster(Operation.ALTER_CONFIGS)
        return None if allowed else _resource(each) | _CLUSTER_DENIED
    if call.may_topic(Operation.ALTER_CONFIGS, each.resource_name):
        return None
    return _resource(each) | {"error_code": ErrorCode.topic_authorization_failed}


async def _configured(call: Call, each: Any) -> Topic | None:
    return await call.broker.topic(each.resource_name) if each.resource_type == _TOPIC else None


def _resource(each: Any) -> dict[str, Any]:
    return {
        "error_message": None, "resource_type": each.resource_type,
        "resource_name": each.resource_name,
    }  # fmt: skip


async def _stored(
    call: Call, each: Any, topic: Topic, config: dict[str, str | None]
) -> dict[str, Any]:
    result = _resource(each)
    if said := configs.wrong(config):
        return result | {"error_code": ErrorCode.invalid_config, "error_message": said}
    if not call.request.validate_only:
        async with call.broker.pool.connection() as connection:
            await connection.execute(
                "UPDATE kafka.topics SET config = %s WHERE id = %s", (Jsonb(config), topic.id)
            )
            await call.broker.catalog.refresh(connection)
    return result
