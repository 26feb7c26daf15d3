"""Requests that read and change the settings of topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode
from psycopg.types.json import Jsonb

from tailrace.broker.auth.access import Operation
from tailrace.broker.tables import configs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.broker.api import Answer, Call
    from tailrace.broker.api.requests import (
        AlterConfigs,
        ChangedResource,
        ChangesConfigs,
        ConfigResource,
        DescribeConfigs,
        DescribedResource,
        IncrementalAlterConfigs,
        ReplacedResource,
    )
    from tailrace.broker.tables.catalog import Topic

# Kafka's numbers: ConfigResource.Type, AlterConfigOp.OpType, ConfigEntry.ConfigSource.
_TOPIC = 2
_SET, _DELETE = 0, 1
_TOPIC_CONFIG, _DEFAULT_CONFIG = 1, 5
_UNLOGGED = "tailrace.unlogged"
_CLUSTER_DENIED = {"error_code": ErrorCode.cluster_authorization_failed}


async def describe(call: Call[DescribeConfigs]) -> Answer:
    """The settings of topics."""
    resources = dict.fromkeys(call.request.resources)
    await call.broker.know([one.resource_name for one in resources if one.resource_type == _TOPIC])
    return {"results": [_describe(call, resource) for resource in resources]}


def _describe(call: Call[DescribeConfigs], resource: DescribedResource) -> dict[str, Any]:
    response = _response(resource) | {"configs": ()}
    if resource.resource_type != _TOPIC:
        allowed = call.may_cluster(Operation.DESCRIBE_CONFIGS)
        return response if allowed else response | _CLUSTER_DENIED
    if not call.may_topic(Operation.DESCRIBE_CONFIGS, resource.resource_name):
        return response | {"error_code": ErrorCode.topic_authorization_failed}
    topic = call.broker.catalog.topics.get(resource.resource_name)
    if topic is None:
        return response | {"error_code": ErrorCode.unknown_topic_or_partition}
    names = resource.configuration_keys
    return response | {
        "configs": [
            {
                "name": name,
                "value": topic.config.get(name, setting.default),
                "read_only": name == _UNLOGGED,
                "is_default": name not in topic.config,
                "config_source": _TOPIC_CONFIG if name in topic.config else _DEFAULT_CONFIG,
                "is_sensitive": False,
                "synonyms": (),
                "config_type": setting.type,
                "documentation": setting.description,
            }
            for name, setting in configs.SETTINGS.items()
            if not names or name in names
        ]
    }


async def alter(call: Call[IncrementalAlterConfigs]) -> Answer:
    """Set or delete single settings of topics."""
    return {"responses": [await _alter(call, resource) for resource in call.request.resources]}


async def replace(call: Call[AlterConfigs]) -> Answer:
    """Replace all settings of topics: a setting that the request omits gets its default."""
    return {"responses": [await _replace(call, resource) for resource in call.request.resources]}


async def _alter(call: Call[IncrementalAlterConfigs], resource: ChangedResource) -> dict[str, Any]:
    if denied := _denied(call, resource):
        return denied
    topic = await _topic(call, resource)
    if topic is None:
        return _response(resource) | {"error_code": ErrorCode.unknown_topic_or_partition}
    config: dict[str, str | None] = {**topic.config}
    for change in resource.configs:
        if change.config_operation not in {_SET, _DELETE} or change.name == _UNLOGGED:
            return _response(resource) | {"error_code": ErrorCode.invalid_config}
        if change.config_operation == _SET:
            config[change.name] = change.value
        else:
            config.pop(change.name, None)
    return await _store(call, resource, topic, config)


async def _replace(call: Call[AlterConfigs], resource: ReplacedResource) -> dict[str, Any]:
    if denied := _denied(call, resource):
        return denied
    topic = await _topic(call, resource)
    if topic is None:
        return _response(resource) | {"error_code": ErrorCode.unknown_topic_or_partition}
    config = {change.name: change.value for change in resource.configs}
    unlogged = topic.config.get(_UNLOGGED)
    # Read-only: the records are in another table. A request may repeat or omit it.
    if config.get(_UNLOGGED, unlogged) != unlogged:
        return _response(resource) | {"error_code": ErrorCode.invalid_config}
    if unlogged is not None:
        config[_UNLOGGED] = unlogged
    return await _store(call, resource, topic, config)


def _denied(call: Call[ChangesConfigs], resource: ConfigResource) -> dict[str, Any] | None:
    """The response if the user may not change these settings."""
    if resource.resource_type != _TOPIC:
        allowed = call.may_cluster(Operation.ALTER_CONFIGS)
        return None if allowed else _response(resource) | _CLUSTER_DENIED
    if call.may_topic(Operation.ALTER_CONFIGS, resource.resource_name):
        return None
    return _response(resource) | {"error_code": ErrorCode.topic_authorization_failed}


async def _topic(call: Call[ChangesConfigs], resource: ConfigResource) -> Topic | None:
    if resource.resource_type != _TOPIC:
        return None
    return await call.broker.topic(resource.resource_name)


def _response(resource: ConfigResource) -> dict[str, Any]:
    return {
        "error_message": None, "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
    }  # fmt: skip


async def _store(
    call: Call[ChangesConfigs],
    resource: ConfigResource,
    topic: Topic,
    config: Mapping[str, str | None],
) -> dict[str, Any]:
    response = _response(resource)
    if problem := configs.problem(config):
        return response | {"error_code": ErrorCode.invalid_config, "error_message": problem}
    if not call.request.validate_only:
        async with call.broker.pool.connection() as connection:
            await connection.execute(
                "UPDATE kafka.topics SET config = %s WHERE id = %s", (Jsonb(config), topic.id)
            )
            await call.broker.catalog.refresh(connection)
    return response
