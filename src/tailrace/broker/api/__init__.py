"""The requests that the broker serves: Kafka's API keys, the versions, and the handlers.

A handler takes a `Call` and returns the fields of the response by name. `requests` types what the
handlers read; `tailrace.broker.wire` reads and writes the bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tailrace.broker.api import configs, consuming, groups, login, offsets, producing, topics
from tailrace.broker.auth.access import CLUSTER, Resource

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    from tailrace.broker.auth.access import Operation, User
    from tailrace.broker.auth.login import Login
    from tailrace.broker.broker import Broker
    from tailrace.broker.limits import Reservation

R_co = TypeVar("R_co", covariant=True)
Answer = dict[str, Any] | None
"""The fields of the response; None if the client expects no response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[R_co]):
    """A request, with the client that sent it and what the handler needs to answer it."""

    broker: Broker
    request: R_co
    version: int
    client: str
    """The client's `client.id`."""
    peer: str
    """The client's address."""
    host: str
    port: int
    """The broker's address as clients see it."""
    login: Login
    user: User | None
    """The authenticated user; None where no login is required."""
    memory: Reservation
    earlier_answered: asyncio.Event
    """Set when every earlier request of the connection has its response."""
    producing: asyncio.Lock
    """Held while the batches of a Produce request are queued: requests are queued in order."""

    def may(self, operation: Operation, resource: Resource, name: str) -> bool:
        """Whether the user may do this.

        Handlers check it before they look the name up, so that a user cannot find out which names
        exist.
        """
        return self.user is None or self.user.may(operation, resource, name)

    def may_topic(self, operation: Operation, name: str) -> bool:
        """Whether the user may do this with a topic."""
        return self.may(operation, Resource.TOPIC, name)

    def may_group(self, operation: Operation, name: str) -> bool:
        """Whether the user may do this with a consumer group."""
        return self.may(operation, Resource.GROUP, name)

    def may_cluster(self, operation: Operation) -> bool:
        """Whether the user may do this with the cluster."""
        return self.may(operation, Resource.CLUSTER, CLUSTER)


@dataclass(frozen=True, slots=True)
class Api:
    """A kind of request."""

    key: int
    name: str
    min_version: int
    max_version: int
    answer: Callable[[Call[Any]], Awaitable[Answer]]
    may_wait: bool = False
    """The response may take long, so the request holds no memory while it waits."""


API_VERSIONS, PRODUCE, HANDSHAKE, AUTHENTICATE = 18, 0, 17, 36
MIN_API_VERSIONS, MAX_API_VERSIONS = 0, 4
"""The versions of ApiVersions itself."""
LOGIN = frozenset({API_VERSIONS, HANDSHAKE, AUTHENTICATE})
"""The requests that are served before the login."""
APIS = {
    api.key: api
    for api in (
        Api(PRODUCE, "Produce", 3, 9, producing.produce),
        Api(1, "Fetch", 4, 12, consuming.fetch, may_wait=True),
        Api(2, "ListOffsets", 1, 7, consuming.list_offsets),
        Api(3, "Metadata", 0, 12, topics.metadata),
        Api(8, "OffsetCommit", 2, 8, offsets.commit),
        Api(9, "OffsetFetch", 1, 7, offsets.fetch),
        Api(10, "FindCoordinator", 0, 3, groups.find_coordinator),
        Api(11, "JoinGroup", 0, 9, groups.join, may_wait=True),
        Api(12, "Heartbeat", 0, 4, groups.heartbeat),
        Api(13, "LeaveGroup", 0, 5, groups.leave),
        Api(14, "SyncGroup", 0, 5, groups.sync, may_wait=True),
        Api(15, "DescribeGroups", 0, 5, groups.describe, may_wait=True),
        Api(16, "ListGroups", 0, 4, groups.list_groups),
        Api(HANDSHAKE, "SaslHandshake", 0, 1, login.handshake),
        Api(19, "CreateTopics", 2, 7, topics.create),
        Api(20, "DeleteTopics", 1, 5, topics.delete),
        Api(21, "DeleteRecords", 0, 2, topics.delete_records),
        Api(22, "InitProducerId", 0, 4, producing.init_producer),
        Api(32, "DescribeConfigs", 1, 4, configs.describe),
        Api(33, "AlterConfigs", 0, 2, configs.replace),
        Api(AUTHENTICATE, "SaslAuthenticate", 0, 2, login.authenticate),
        Api(37, "CreatePartitions", 0, 3, topics.create_partitions),
        Api(42, "DeleteGroups", 0, 2, groups.delete),
        Api(44, "IncrementalAlterConfigs", 0, 1, configs.alter),
    )
}


def api_versions() -> dict[str, Any]:
    """The response to ApiVersions."""
    keys = [(api.key, api.min_version, api.max_version) for api in APIS.values()]
    keys.append((API_VERSIONS, MIN_API_VERSIONS, MAX_API_VERSIONS))
    return {
        "api_keys": [
            {"api_key": key, "min_version": first, "max_version": last}
            for key, first, last in sorted(keys)
        ]
    }
