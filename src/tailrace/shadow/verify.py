"""Verification of a copy: reads both sides, and maps offsets of consumer groups to Kafka.

Offsets differ between the two sides: Kafka also counts the markers of transactions, and aborted
records. So records are matched by their index: the ledger says which offsets of the broker the
committed records of Kafka have. The same pass finds the Kafka offsets of what groups committed.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    ConsumerGroupTopicPartitions,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from tailrace.broker.tables import headers
from tailrace.errors import SinkRefusedError, SinkUnreachableError
from tailrace.shadow import ledger, target
from tailrace.shadow.comparison import Committed, Comparison, Merge, PartitionComparison
from tailrace.shadow.source import BrokerTables
from tailrace.sinks.kafka.client import client_config, create_client
from tailrace.sinks.kafka.failures import Events, cause
from tailrace.sinks.kafka.topics import Cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from confluent_kafka import Message

    from tailrace.shadow.comparison import Record
    from tailrace.shadow.ledger import PartitionCopy
    from tailrace.shadow.settings import ShadowSink
    from tailrace.shadow.source import BrokerTopic, Extent, PartitionKey

    GroupOffset = tuple[str, int, str]
    """Group, committed offset, metadata."""

_POLL_S = 0.5
_MAX_COUNTS = 5
_GROUPS = """
SELECT group_id, topic_id, partition_id, "offset", metadata FROM kafka.consumer_offsets
ORDER BY 1, 2, 3
"""


def verify(
    settings: ShadowSink,
    *,
    name: str,
    wait_s: float = 0.0,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """Compare every copied topic, after waiting up to `wait_s` for records in flight."""
    with BrokerTables(settings.dsn.get_secret_value()) as source:
        _wait_for_copy(source, settings, name, wait_s)
        with source.connection.transaction():
            source.connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            return _Verification(source, settings, name, on_progress).run()


def _wait_for_copy(source: BrokerTables, settings: ShadowSink, name: str, wait_s: float) -> None:
    """Wait until the copy has reached the present end of every copied partition."""
    topics = source.topics()
    ends = {
        key: (ledger.key_of(topic.uuid, key[1]), extent.next)
        for key, extent in source.extents().items()
        if (topic := topics.get(key[0])) is not None
        and topic.enabled
        and extent.next > max(extent.first, topic.start(key[1]))
    }
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        # Kafka may be restarting.
        with contextlib.suppress(SinkUnreachableError):
            if _has_reached(source, ends, _ledger(settings, name)):
                return
        time.sleep(_POLL_S)


def _has_reached(
    source: BrokerTables,
    ends: Mapping[PartitionKey, tuple[bytes, int]],
    copies: Mapping[bytes, PartitionCopy],
) -> bool:
    """Whether every partition is copied up to its end. `ends` has ledger keys and ends.

    A copy that disagrees with the database is of the time before a restore, and about to be
    replaced: the sink has not yet committed the new one.
    """
    extents = source.extents()
    for key, (ledger_key, end) in ends.items():
        copy, extent = copies.get(ledger_key), extents.get(key)
        if copy is None or copy.next < end:
            return False
        if extent is not None and not source.agrees(key, extent, copy):
            return False
    return True


def _ledger(settings: ShadowSink, name: str) -> dict[bytes, PartitionCopy]:
    topic = ledger.topic_of(settings, name)
    if Cluster(settings, name=name).partitions([topic])[topic] is None:
        return {}
    return ledger.read(settings, name=name)


class _Verification:
    """One comparison of both sides."""

    def __init__(
        self,
        source: BrokerTables,
        settings: ShadowSink,
        name: str,
        on_progress: Callable[[str], None],
    ) -> None:
        self._source = source
        self._settings = settings
        self._name = name
        self._on_progress = on_progress
        self._result = Comparison()

    def run(self) -> Comparison:
        topics, extents = self._source.topics(), self._source.extents()
        groups: dict[PartitionKey, list[GroupOffset]] = {}
        for group, topic_id, partition, offset, metadata in self._source.connection.execute(
            _GROUPS
        ):
            groups.setdefault((topic_id, partition), []).append((group, offset, metadata))
        copies = _ledger(self._settings, self._name)
        for topic in sorted(topics.values(), key=lambda topic: topic.name):
            if not topic.enabled:
                self._result.not_copied.append(topic.name)
                continue
            for partition in range(topic.partitions):
                key = (topic.id, partition)
                self._on_progress(f"{topic.name} {partition}")
                copy = copies.get(ledger.key_of(topic.uuid, partition))
                self._partition(topic, partition, extents[key], copy, groups.get(key, []))
        return self._result

    def _partition(
        self,
        topic: BrokerTopic,
        partition: int,
        extent: Extent,
        copy: PartitionCopy | None,
        groups: Sequence[GroupOffset],
    ) -> None:
        result = PartitionComparison(
            topic=topic.name, partition=partition, first=extent.first, next=extent.next
        )
        self._result.partitions.append(result)
        start = topic.start(partition)
        kafka_offsets: dict[int, int] = {}
        kafka_end = 0
        if copy is None:
            result.lag = extent.next - max(extent.first, start)
        else:
            result.copied = copy.count
            committed = sorted({offset for _, offset, _ in groups})
            kafka_offsets, kafka_end = self._compare(topic, result, copy, committed)
            result.lag = max(0, extent.next - max(copy.next, start))
        self._result.groups += [
            Committed(
                group=group,
                topic=topic.name,
                partition=partition,
                offset=offset,
                kafka_offset=kafka_offsets.get(offset, kafka_end),
                metadata=metadata,
            )
            for group, offset, metadata in groups
        ]

    def _compare(
        self, topic: BrokerTopic, result: PartitionComparison, copy: PartitionCopy,
        committed: list[int],
    ) -> tuple[dict[int, int], int]:  # fmt: skip
        """Compare a partition in one pass. Returns the Kafka offsets of `committed`, and the end.

        A committed offset maps to the first Kafka record whose broker offset is not smaller. With
        the broker's records 7 and 9 at the Kafka offsets 100 and 102, a group that committed 8
        resumes at 102. A group that has read everything resumes at the end of the partition.

        Records that the ledger has but this transaction does not see yet (`offset >= end`) take
        part in the mapping only.
        """
        index = self._first_index(topic, result.partition, copy)
        result.dropped = index
        floor = copy.offset(index) if index < copy.count else copy.next
        end = min(copy.next, result.next)
        merge = Merge(result, self._records((topic.id, result.partition), copy, floor, end))
        kafka_offsets: dict[int, int] = {}
        unmapped = list(reversed(committed))
        for offset, message in self._copied_messages(topic, result.partition, copy, index):
            while unmapped and unmapped[-1] <= offset:
                kafka_offsets[unmapped.pop()] = message.offset() or 0
            if offset < end:
                merge.add(_record(offset, message))
        merge.finish()
        _, kafka_end = target.bounds(self._settings, topic.name, result.partition, name=self._name)
        return kafka_offsets, kafka_end

    def _records(
        self, key: PartitionKey, copy: PartitionCopy, floor: int, end: int
    ) -> Iterator[Record]:
        """The records of the table that Kafka must have."""
        for first, last in copy.runs:
            for rows in self._source.records(key, max(first, floor), min(last, end)):
                for row in rows.to_pylist():
                    yield (
                        row["offset"], row["timestamp"], row["key"], row["value"],
                        headers.parse(row["headers"]),
                    )  # fmt: skip

    def _copied_messages(
        self, topic: BrokerTopic, partition: int, copy: PartitionCopy, index: int
    ) -> Iterator[tuple[int, Message]]:
        """The records of Kafka with their offsets in the broker, from the given index on."""
        first = copy.base
        for _ in self._passes(topic, partition):
            for message in self._messages(topic, partition, first):
                if index >= copy.count:
                    # Written after the ledger was read.
                    return
                yield copy.offset(index), message
                index += 1
                first = (message.offset() or 0) + 1
            if index >= copy.count:
                return

    def _passes(self, topic: BrokerTopic, partition: int) -> Iterator[None]:
        """One, and more while a transaction is open.

        Kafka acknowledges a commit before it has marked every partition: the ledger may have
        records that the partition does not show yet.
        """
        deadline = time.monotonic() + self._settings.timeout_s
        yield
        while time.monotonic() < deadline:
            was_open = target.is_open(self._settings, topic.name, partition, name=self._name)
            yield
            if not was_open:
                return
            time.sleep(_POLL_S)

    def _messages(self, topic: BrokerTopic, partition: int, first: int) -> Iterator[Message]:
        return target.committed(self._settings, topic.name, partition, name=self._name, first=first)

    def _first_index(self, topic: BrokerTopic, partition: int, copy: PartitionCopy) -> int:
        """The index of the first record that Kafka's retention has not deleted.

        Kafka does not say how many records it deleted. So the remaining ones are counted and
        subtracted from the ledger's count, which must not change meanwhile.
        """
        low, _ = target.bounds(self._settings, topic.name, partition, name=self._name)
        if low <= copy.base:
            return 0
        key = ledger.key_of(topic.uuid, partition)
        for _ in range(_MAX_COUNTS):
            before = ledger.read(self._settings, name=self._name)[key]
            count = sum(1 for _ in self._messages(topic, partition, copy.base))
            if ledger.read(self._settings, name=self._name)[key] == before:
                return before.count - count
        raise SinkRefusedError(
            f"cannot verify topic {topic.name}: Kafka's retention has deleted its first records, "
            "and new records arrive while the remaining ones are counted",
            hint="Stop the producers of the topic for a moment, and run verify again.",
        )


def _record(offset: int, message: Message) -> Record:
    pairs: Any = message.headers() or []
    kind, milliseconds = message.timestamp()
    if kind == TIMESTAMP_LOG_APPEND_TIME:
        # The time of the copy.
        milliseconds = 0
    return (
        offset, milliseconds, _bytes(message.key()), _bytes(message.value()),
        [(name, _bytes(value)) for name, value in pairs],
    )  # fmt: skip


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def commit(settings: ShadowSink, groups: Sequence[Committed], *, name: str) -> None:
    """Commit the offsets of groups in Kafka. An error for a group that is active there."""
    events = Events()
    admin = create_client(AdminClient, client_config(settings, events, name=name))
    for group in sorted({one.group for one in groups}):
        partitions = [
            TopicPartition(one.topic, one.partition, one.kafka_offset, one.metadata)
            for one in groups
            if one.group == group
        ]
        futures = admin.alter_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group, partitions)], request_timeout=settings.timeout_s
        )
        try:
            answer = futures[group].result(settings.timeout_s * 2)
        except KafkaException as error:
            raise events.translate_error(cause(error), f"group {group}") from error
        for partition in answer.topic_partitions:
            if partition.error is not None:
                what = f"group {group}, topic {partition.topic}"
                raise events.translate_error(partition.error, what)
