"""What clients may ask, by Kafka's numbers: which versions, and who answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tailrace.broker.api import consuming, groups, offsets, producing, topics

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tailrace.broker.broker import Broker

Answer = dict[str, Any] | None
"""The fields of the response; None where the client wants none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request that is to be answered."""

    broker: Broker
    request: Any
    version: int
    client: str
    peer: str
    """Where the client is."""
    host: str
    port: int
    """Where the client has found us."""


@dataclass(frozen=True, slots=True)
class Api:
    """A kind of request."""

    key: int
    least: int
    most: int
    answer: Callable[[Call], Awaitable[Answer]]


APIS = {
    api.key: api
    for api in (
        Api(0, 3, 9, producing.produce),
        Api(1, 4, 12, consuming.fetch),
        Api(2, 1, 7, consuming.list_offsets),
        Api(3, 0, 12, topics.metadata),
        Api(8, 2, 8, offsets.commit),
        Api(9, 1, 7, offsets.fetch),
        Api(10, 0, 3, groups.find_coordinator),
        Api(11, 0, 9, groups.join),
        Api(12, 0, 4, groups.heartbeat),
        Api(13, 0, 5, groups.leave),
        Api(14, 0, 5, groups.sync),
        Api(15, 0, 5, groups.describe),
        Api(16, 0, 4, groups.list_groups),
        Api(19, 2, 7, topics.create),
        Api(20, 1, 5, topics.delete),
        Api(21, 0, 2, topics.delete_records),
        Api(22, 0, 4, producing.init_producer),
        Api(32, 1, 4, topics.describe_configs),
        Api(37, 0, 3, topics.create_partitions),
        Api(42, 0, 2, groups.delete),
        Api(44, 0, 1, topics.alter_configs),
    )
}
API_VERSIONS = 18
_VERSIONS = (0, 4)


def served() -> dict[str, Any]:
    """The answer to ApiVersions."""
    keys = [(api.key, api.least, api.most) for api in APIS.values()]
    keys.append((API_VERSIONS, *_VERSIONS))
    return {
        "api_keys": [
            {"api_key": key, "min_version": least, "max_version": most}
            for key, least, most in sorted(keys)
        ]
    }
