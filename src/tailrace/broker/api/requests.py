"""The fields of Kafka's requests that the handlers read, as one Protocol per request.

`kio` generates one class per request and version. The classes of one request have nothing in common
but the names of their fields, so a Protocol names those that a handler reads. A field that exists
in some versions only is marked with `Since` or `Until`; handlers read it with `field_or`.
`tests/unit/broker/api/test_requests.py` compares every Protocol with the classes of `kio`.

Entities are frozen: handlers never assign to a field.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta  # noqa: TC003 - the test resolves the annotations
from typing import TYPE_CHECKING, Annotated, Protocol, TypeVar
from uuid import UUID  # noqa: TC003 - the test resolves the annotations

if TYPE_CHECKING:
    from collections.abc import Callable

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Since:
    """The first version that has a field."""

    version: int


@dataclass(frozen=True, slots=True)
class Until:
    """The last version that has a field."""

    version: int


def field_or(read: Callable[[], Value], default: Value) -> Value:
    """A field that some versions of a request lack: `field_or(lambda: request.key_type, 0)`."""
    try:
        return read()
    except AttributeError:
        return default


class ProducePartition(Protocol):
    """The records for one partition."""

    index: int
    records: bytes | None


class ProduceTopic(Protocol):
    """The records for one topic."""

    name: str
    partition_data: tuple[ProducePartition, ...]


class Produce(Protocol):
    """Produce (0)."""

    transactional_id: str | None
    acks: int
    timeout: timedelta
    topic_data: tuple[ProduceTopic, ...]


class InitProducerId(Protocol):
    """InitProducerId (22)."""

    transactional_id: str | None
    producer_id: Annotated[int, Since(3)]
    producer_epoch: Annotated[int, Since(3)]


class FetchPartition(Protocol):
    """Where to read one partition from, and how much."""

    partition: int
    fetch_offset: int
    partition_max_bytes: int


class FetchTopic(Protocol):
    """The partitions of one topic to read."""

    topic: str
    partitions: tuple[FetchPartition, ...]


class Fetch(Protocol):
    """Fetch (1)."""

    max_wait: timedelta
    min_bytes: int
    max_bytes: int
    topics: tuple[FetchTopic, ...]


class ListOffsetsPartition(Protocol):
    """A partition and a timestamp in milliseconds, or one of Kafka's negative constants."""

    partition_index: int
    timestamp: int


class ListOffsetsTopic(Protocol):
    """The partitions of one topic to look up."""

    name: str
    partitions: tuple[ListOffsetsPartition, ...]


class ListOffsets(Protocol):
    """ListOffsets (2)."""

    topics: tuple[ListOffsetsTopic, ...]


class MetadataTopic(Protocol):
    """A topic by its name, or by its id where the name is null."""

    name: str | None
    topic_id: Annotated[UUID | None, Since(10)]


class Metadata(Protocol):
    """Metadata (3). `topics` is null for all topics, in version 0 empty."""

    topics: tuple[MetadataTopic, ...] | None
    allow_auto_topic_creation: Annotated[bool, Since(4)]


class CommitPartition(Protocol):
    """An offset to commit."""

    partition_index: int
    committed_offset: int
    committed_leader_epoch: Annotated[int, Since(6)]
    committed_metadata: str | None


class CommitTopic(Protocol):
    """The offsets of one topic to commit."""

    name: str
    partitions: tuple[CommitPartition, ...]


class OffsetCommit(Protocol):
    """OffsetCommit (8)."""

    group_id: str
    generation_id_or_member_epoch: int
    member_id: str
    group_instance_id: Annotated[str | None, Since(7)]
    topics: tuple[CommitTopic, ...]


class OffsetFetchTopic(Protocol):
    """The partitions of one topic to look up."""

    name: str
    partition_indexes: tuple[int, ...]


class OffsetFetch(Protocol):
    """OffsetFetch (9). `topics` is null for all topics."""

    group_id: str
    topics: tuple[OffsetFetchTopic, ...] | None


class FindCoordinator(Protocol):
    """FindCoordinator (10)."""

    key: str
    key_type: Annotated[int, Since(1)]


class GroupRequest(Protocol):
    """Every request about one group."""

    group_id: str


class JoinGroupProtocol(Protocol):
    """An assignor that a member supports."""

    name: str
    metadata: bytes


class JoinGroup(GroupRequest, Protocol):
    """JoinGroup (11)."""

    session_timeout: timedelta
    rebalance_timeout: Annotated[timedelta, Since(1)]
    member_id: str
    group_instance_id: Annotated[str | None, Since(5)]
    protocol_type: str
    protocols: tuple[JoinGroupProtocol, ...]


class SyncGroupAssignment(Protocol):
    """The assignment of one member, as the leader computed it."""

    member_id: str
    assignment: bytes


class SyncGroup(GroupRequest, Protocol):
    """SyncGroup (14)."""

    generation_id: int
    member_id: str
    group_instance_id: Annotated[str | None, Since(3)]
    protocol_type: Annotated[str | None, Since(5)]
    protocol_name: Annotated[str | None, Since(5)]
    assignments: tuple[SyncGroupAssignment, ...]


class Heartbeat(GroupRequest, Protocol):
    """Heartbeat (12)."""

    generation_id: int
    member_id: str
    group_instance_id: Annotated[str | None, Since(3)]


class LeavingMember(Protocol):
    """A member that leaves, by its id or its instance."""

    member_id: str
    group_instance_id: str | None


class LeaveGroup(GroupRequest, Protocol):
    """LeaveGroup (13): one member, from version 3 on several."""

    member_id: Annotated[str, Until(2)]
    members: Annotated[tuple[LeavingMember, ...], Since(3)]


class DescribeGroups(Protocol):
    """DescribeGroups (15)."""

    groups: tuple[str, ...]


class ListGroups(Protocol):
    """ListGroups (16)."""

    states_filter: Annotated[tuple[str, ...], Since(4)]


class DeleteGroups(Protocol):
    """DeleteGroups (42)."""

    groups_names: tuple[str, ...]


class SaslHandshake(Protocol):
    """SaslHandshake (17)."""

    mechanism: str


class SaslAuthenticate(Protocol):
    """SaslAuthenticate (36)."""

    auth_bytes: bytes


class ReplicaAssignment(Protocol):
    """The brokers of one partition. Its content is ignored: there is one broker."""

    partition_index: int


class ConfigValue(Protocol):
    """A setting and its value."""

    name: str
    value: str | None


class NewTopic(Protocol):
    """A topic to create."""

    name: str
    num_partitions: int
    replication_factor: int
    assignments: tuple[ReplicaAssignment, ...]
    configs: tuple[ConfigValue, ...]


class CreateTopics(Protocol):
    """CreateTopics (19)."""

    topics: tuple[NewTopic, ...]
    validate_only: bool


class DeleteTopics(Protocol):
    """DeleteTopics (20)."""

    topic_names: tuple[str, ...]


class GrownTopic(Protocol):
    """A topic and the number of partitions that it is to have."""

    name: str
    count: int


class CreatePartitions(Protocol):
    """CreatePartitions (37)."""

    topics: tuple[GrownTopic, ...]
    validate_only: bool


class DeleteRecordsPartition(Protocol):
    """The offset before which records are deleted; -1 for all."""

    partition_index: int
    offset: int


class DeleteRecordsTopic(Protocol):
    """The partitions of one topic whose records are deleted."""

    name: str
    partitions: tuple[DeleteRecordsPartition, ...]


class DeleteRecords(Protocol):
    """DeleteRecords (21)."""

    topics: tuple[DeleteRecordsTopic, ...]


class ConfigResource(Protocol):
    """A topic or a broker whose settings are read or changed."""

    resource_type: int
    resource_name: str


class DescribedResource(ConfigResource, Protocol):
    """A resource whose settings are read. `configuration_keys` is null for all settings."""

    configuration_keys: tuple[str, ...] | None


class DescribeConfigs(Protocol):
    """DescribeConfigs (32)."""

    resources: tuple[DescribedResource, ...]


class ReplacedResource(ConfigResource, Protocol):
    """A resource whose settings are all replaced."""

    configs: tuple[ConfigValue, ...]


class AlterConfigs(Protocol):
    """AlterConfigs (33)."""

    resources: tuple[ReplacedResource, ...]
    validate_only: bool


class ConfigChange(ConfigValue, Protocol):
    """A setting that is set or deleted."""

    config_operation: int


class ChangedResource(ConfigResource, Protocol):
    """A resource of which some settings change."""

    configs: tuple[ConfigChange, ...]


class IncrementalAlterConfigs(Protocol):
    """IncrementalAlterConfigs (44)."""

    resources: tuple[ChangedResource, ...]
    validate_only: bool


class ChangesConfigs(Protocol):
    """Both requests that change settings."""

    validate_only: bool
