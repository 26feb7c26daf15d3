"""Both sides side by side: whether the copy is whole, and where consumers go on over there.

Offsets differ: Kafka counts the ends of transactions, and what was given up, as well. So records
are told apart by their number: the ledger says of which offsets over here the committed records
over there are. The same reading that compares them finds the offsets that groups have committed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from tailrace.broker.tables import headers
from tailrace.errors import SinkRefusedError
from tailrace.shadow import ledger, target
from tailrace.shadow.ledger import Copied, digest
from tailrace.shadow.source import BrokerTables
from tailrace.sinks.kafka.client import base, made
from tailrace.sinks.kafka.failures import Events, cause
from tailrace.sinks.kafka.topics import Cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from confluent_kafka import Message

    from tailrace.config import ShadowSink
    from tailrace.shadow.source import BrokerTopic, Extent, Place

    Record = tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]
    """Offset, milliseconds, key, value, headers."""

_LOOK_S = 0.5
_TRIES = 5
_GROUPS = """
SELECT group_id, topic_id, partition_id, "offset", metadata FROM kafka.consumer_offsets
ORDER BY 1, 2, 3
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """What a group has committed for a partition: over here, and what it is over there."""

    group: str
    topic: str
    partition: int
    offset: int
    there: int
    metadata: str = ""


@dataclass(slots=True, kw_only=True)
class Partition:
    """What was found of one partition."""

    topic: str
    partition: int
    first: int
    next: int
    """The offsets over here."""
    copied: int = 0
    """Records over there, as the ledger has it."""
    dropped: int = 0
    """Records that Kafka's retention has taken since."""
    compared: int = 0
    behind: int = 0
    """Records that are not there yet."""
    checksum: int = 0
    checksum_there: int = 0
    difference: str = ""

    @property
    def safe(self) -> bool:
        """Whether the copy is whole."""
        return not self.behind and not self.difference and self.checksum == self.checksum_there


@dataclass(slots=True, kw_only=True)
class Comparison:
    """All partitions that are copied, and all groups that read them."""

    partitions: list[Partition] = field(default_factory=list)
    groups: list[Committed] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """Topics that are not copied."""

    @property
    def safe(self) -> bool:
        """Whether consumers and producers may move."""
        return all(each.safe for each in self.partitions)


def verify(
    settings: ShadowSink,
    *,
    name: str,
    wait_s: float = 0.0,
    tell: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """Compare every topic that is copied, after waiting for what is on its way."""
    with BrokerTables(settings.dsn.get_secret_value()) as source:
        _wait(source, settings, name, wait_s)
        with source.connection.transaction():
            source.connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            return _Verification(source, settings, name, tell).run()


def _wait(source: BrokerTables, settings: ShadowSink, name: str, wait_s: float) -> None:
    topics, extents = source.topics(), source.extents()
    wanted = {
        ledger.key_of(topic.uuid, place[1]): extent.next
        for place, extent in extents.items()
        if (topic := topics.get(place[0])) is not None
        and topic.enabled
        and extent.next > max(extent.first, topic.start(place[1]))
    }
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        held = _ledger(settings, name)
        if all(key in held and held[key].next >= end for key, end in wanted.items()):
            return
        time.sleep(_LOOK_S)


def _ledger(settings: ShadowSink, name: str) -> dict[bytes, Copied]:
    topic = ledger.topic_of(settings, name)
    if Cluster(settings, name=name).partitions([topic])[topic] is None:
        return {}
    return ledger.read(settings, name=name)


class _Verification:
    """One look at both sides."""

    def __init__(
        self, source: BrokerTables, settings: ShadowSink, name: str, tell: Callable[[str], None]
    ) -> None:
        self._source = source
        self._settings = settings
        self._name = name
        self._tell = tell
        self._found = Comparison()

    def run(self) -> Comparison:
        topics, extents = self._source.topics(), self._source.extents()
        groups = self._source.connection.execute(_GROUPS).fetchall()
        held = _ledger(self._settings, self._name)
        for topic in sorted(topics.values(), key=lambda topic: topic.name):
            if not topic.enabled:
                self._found.left_out.append(topic.name)
                continue
            for partition in range(topic.partitions):
                place = (topic.id, partition)
                asked = [
                    (group, offset, metadata)
                    for group, *where, offset, metadata in groups
                    if tuple(where) == place
                ]
                self._tell(f"{topic.name} {partition}")
                copied = held.get(ledger.key_of(topic.uuid, partition))
                self._partition(topic, partition, extents[place], copied, asked)
        return self._found

    def _partition(
        self,
        topic: BrokerTopic,
        partition: int,
        extent: Extent,
        copied: Copied | None,
        asked: Sequence[tuple[str, int, str]],
    ) -> None:
        found = Partition(
            topic=topic.name, partition=partition, first=extent.first, next=extent.next
        )
        self._found.partitions.append(found)
        start = topic.start(partition)
        if copied is None:
            found.behind = extent.next - max(extent.first, start)
            there: dict[int, int] = {}
            end = 0
        else:
            found.copied = copied.count
            wanted = sorted({offset for _, offset, _ in asked})
            there, end = self._compare(topic, found, copied, wanted)
            found.behind = max(0, extent.next - max(copied.next, start))
        self._found.groups += [
            Committed(
                group=group,
                topic=topic.name,
                partition=partition,
                offset=offset,
                there=there.get(offset, end),
                metadata=metadata,
            )
            for group, offset, metadata in asked
        ]

    def _compare(
        self, topic: BrokerTopic, found: Partition, copied: Copied, wanted: list[int]
    ) -> tuple[dict[int, int], int]:
        """Merge both sides by their offsets; where the wanted offsets are over there, and the
        end."""
        index = self._first_index(topic, found.partition, copied)
        found.dropped = index
        floor = copied.offset(index) if index < copied.count else copied.next
        upto = min(copied.next, found.next)
        here = self._here((topic.id, found.partition), copied, floor, upto)
        mine = next(here, None)
        there: dict[int, int] = {}
        left = list(reversed(wanted))
        for offset, message in self._there(topic, found.partition, copied, index):
            while left and left[-1] <= offset:
                there[left.pop()] = message.offset() or 0
            if offset >= upto:
                continue
            while mine is not None and mine[0] < offset:
                _note(found, f"offset {mine[0]} is not there")
                mine = next(here, None)
            if mine is None or mine[0] > offset:
                if offset >= found.first:
                    _note(found, f"offset {offset} is there, and not here")
                continue
            theirs = _record(offset, message)
            if mine[1] == 0:
                # librdkafka takes this for no time at all.
                theirs = (offset, 0, *theirs[2:])
            found.compared += 1
            found.checksum = digest(*mine[1:], seed=found.checksum)
            found.checksum_there = digest(*theirs[1:], seed=found.checksum_there)
            if mine != theirs:
                _note(found, f"offset {offset} differs")
            mine = next(here, None)
        while mine is not None:
            _note(found, f"offset {mine[0]} is not there")
            mine = next(here, None)
        end = target.bounds(self._settings, topic.name, found.partition, name=self._name)[1]
        return there, end

    def _here(self, place: Place, copied: Copied, floor: int, upto: int) -> Iterator[Record]:
        """The records that Kafka should have."""
        for first, end in copied.runs:
            for rows in self._source.records(place, max(first, floor), min(end, upto)):
                for row in rows.to_pylist():
                    yield (
                        row["offset"], row["timestamp"], row["key"], row["value"],
                        headers.parse(row["headers"]),
                    )  # fmt: skip

    def _there(
        self, topic: BrokerTopic, partition: int, copied: Copied, index: int
    ) -> Iterator[tuple[int, Message]]:
        """The records of Kafka with their offsets over here, from the one of this number on."""
        for message in self._records(topic, partition, copied):
            if index >= copied.count:
                # Written since the ledger was read.
                return
            yield copied.offset(index), message
            index += 1

    def _records(self, topic: BrokerTopic, partition: int, copied: Copied) -> Iterator[Message]:
        return target.committed(
            self._settings, topic.name, partition, name=self._name, first=copied.base
        )

    def _first_index(self, topic: BrokerTopic, partition: int, copied: Copied) -> int:
        """The number of the first record that Kafka still has: its retention may have taken some.

        They are counted from the end then, while nothing is written.
        """
        low, _ = target.bounds(self._settings, topic.name, partition, name=self._name)
        if low <= copied.base:
            return 0
        key = ledger.key_of(topic.uuid, partition)
        for _ in range(_TRIES):
            before = ledger.read(self._settings, name=self._name)[key]
            count = sum(1 for _ in self._records(topic, partition, copied))
            if ledger.read(self._settings, name=self._name)[key] == before:
                return before.count - count
        raise SinkRefusedError(
            f"topic {topic.name} is written all the time, and its first records are gone in Kafka: "
            "which of them are left cannot be told",
            hint="Stop the producers for a moment.",
        )


def _note(found: Partition, difference: str) -> None:
    if not found.difference:
        found.difference = difference


def _record(offset: int, message: Message) -> Record:
    key, value = message.key(), message.value()
    given: Any = message.headers() or []
    found = [(name, _bytes(held)) for name, held in given]
    return offset, message.timestamp()[1], _bytes(key), _bytes(value), found


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def commit(settings: ShadowSink, groups: Sequence[Committed], *, name: str) -> None:
    """Let groups go on in Kafka where they are here. They must not be running there."""
    events = Events()
    admin = made(AdminClient, base(settings, events, name=name))
    for group in sorted({each.group for each in groups}):
        places = [
            TopicPartition(each.topic, each.partition, each.there, each.metadata)
            for each in groups
            if each.group == group
        ]
        asked = admin.alter_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group, places)], request_timeout=settings.timeout_s
        )
        try:
            answer = asked[group].result(settings.timeout_s * 2)
        except KafkaException as error:
            raise events.translate_error(cause(error), f"group {group}") from error
        for place in answer.topic_partitions:
            if place.error is not None:
                raise events.translate_error(place.error, f"group {group}, topic {place.topic}")
