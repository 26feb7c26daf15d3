"""What clients may ask, by Kafka's numbers: which versions, and who answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tailrace.broker.api import consuming, groups, login, offsets, producing, topics
from tailrace.broker.auth.access import CLUSTER, Resource

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    from tailrace.broker.auth.access import Operation, User
    from tailrace.broker.auth.login import Login
    from tailrace.broker.broker import Broker
    from tailrace.broker.limits import Share

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
    """Where clients find us."""
    login: Login
    user: User | None
    """Who asks; None where nobody has to log in."""
    share: Share
    """The memory that is set aside for it."""
    turn: asyncio.Event
    """Set once everything before it on its connection is answered."""

    def may(self, operation: Operation, resource: Resource, name: str) -> bool:
        """Whether the user may do this. Asked before it is looked whether there is such a thing."""
        return self.user is None or self.user.may(operation, resource, name)

    def may_topic(self, operation: Operation, name: str) -> bool:
        """The same for a topic."""
        return self.may(operation, Resource.TOPIC, name)

    def may_group(self, operation: Operation, name: str) -> bool:
        """The same for a consumer group."""
        return self.may(operation, Resource.GROUP, name)

    def may_cluster(self, operation: Operation) -> bool:
        """The same for what is about everything."""
        return self.may(operation, Resource.CLUSTER, CLUSTER)


@dataclass(frozen=True, slots=True)
class Api:
    """A kind of request."""

    key: int
    name: str
    least: int
    most: int
    answer: Callable[[Call], Awaitable[Answer]]
    waits: bool = False
    """Its answer may be a long time coming, so it takes no memory until it has one."""


API_VERSIONS, PRODUCE, HANDSHAKE, AUTHENTICATE = 18, 0, 17, 36
LEAST_VERSIONS, MOST_VERSIONS = 0, 4
"""The versions of ApiVersions itself."""
LOGIN = frozenset({API_VERSIONS, HANDSHAKE, AUTHENTICATE})
"""What may be asked before the login."""
APIS = {
    api.key: api
    for api in (
        Api(PRODUCE, "Produce", 3, 9, producing.produce),
        Api(1, "Fetch", 4, 12, consuming.fetch, waits=True),
        Api(2, "ListOffsets", 1, 7, consuming.list_offsets),
        Api(3, "Metadata", 0, 12, topics.metadata),
        Api(8, "OffsetCommit", 2, 8, offsets.commit),
        Api(9, "OffsetFetch", 1, 7, offsets.fetch),
        Api(10, "FindCoordinator", 0, 3, groups.find_coordinator),
        Api(11, "JoinGroup", 0, 9, groups.join, waits=True),
        Api(12, "Heartbeat", 0, 4, groups.heartbeat),
        Api(13, "LeaveGroup", 0, 5, groups.leave),
        Api(14, "SyncGroup", 0, 5, groups.sync, waits=True),
        Api(15, "DescribeGroups", 0, 5, groups.describe),
        Api(16, "ListGroups", 0, 4, groups.list_groups),
        Api(HANDSHAKE, "SaslHandshake", 0, 1, login.handshake),
        Api(19, "CreateTopics", 2, 7, topics.create),
        Api(20, "DeleteTopics", 1, 5, topics.delete),
        Api(21, "DeleteRecords", 0, 2, topics.delete_records),
        Api(22, "InitProducerId", 0, 4, producing.init_producer),
        Api(32, "DescribeConfigs", 1, 4, topics.describe_configs),
        Api(33, "AlterConfigs", 0, 2, topics.replace_configs),
        Api(AUTHENTICATE, "SaslAuthenticate", 0, 2, login.authenticate),
        Api(37, "CreatePartitions", 0, 3, topics.create_partitions),
        Api(42, "DeleteGroups", 0, 2, groups.delete),
        Api(44, "IncrementalAlterConfigs", 0, 1, topics.alter_configs),
    )
}


def served() -> dict[str, Any]:
    """The answer to ApiVersions."""
    keys = [(api.key, api.least, api.most) for api in APIS.values()]
    keys.append((API_VERSIONS, LEAST_VERSIONS, MOST_VERSIONS))
    return {
        "api_keys": [
            {"api_key": key, "min_version": least, "max_version": most}
            for key, least, most in sorted(keys)
        ]
    }
