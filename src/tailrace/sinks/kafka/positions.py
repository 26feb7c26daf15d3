"""How far each lane of a pipeline is, in a compacted topic of the pipeline's own.

A lane has a partition, and writes to it in the transactions of its messages, so a position is there
if and only if what it speaks of is. A partition for each, because a reader of committed records
sees nothing behind a transaction that is still open, and other lanes have some open all the time.

Consumer groups could hold positions as well; but their offsets are gone after a week without a
commit (offsets.retention.minutes), and with the topic they are said to be of.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tailrace.errors import SinkRefusedError, SinkUnreachableError
from tailrace.position import Position
from tailrace.sinks.kafka.client import base, made
from tailrace.sinks.kafka.failures import Events, cause
from tailrace.sinks.kafka.publisher import Publisher
from tailrace.sinks.kafka.topics import Cluster

if TYPE_CHECKING:
    from confluent_kafka import Message

    from tailrace.config import Kafka

_STRIDE = 16
_LOOK_S = 0.2
_CONFIG = {"cleanup.policy": "compact", "segment.bytes": str(16 * 2**20)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """What a lane has delivered: all its messages up to `position`.

    `count` and `digest` are of those since `after`, where the micro-batch begins.
    """

    position: Position
    after: Position
    source: str
    lane: int
    lanes: int
    count: int
    digest: int

    def dump(self) -> bytes:
        """As the value of a record."""
        return json.dumps(
            {
                "position": str(self.position),
                "after": str(self.after),
                "source": self.source,
                "lane": self.lane,
                "lanes": self.lanes,
                "count": self.count,
                "digest": f"{self.digest:016x}",
            }
        ).encode()

    @classmethod
    def load(cls, value: bytes) -> Reached:
        """From the value of a record."""
        fields = json.loads(value)
        return cls(
            position=Position.parse(fields["position"]),
            after=Position.parse(fields["after"]),
            source=fields["source"],
            lane=fields["lane"],
            lanes=fields["lanes"],
            count=fields["count"],
            digest=int(fields["digest"], 16),
        )


def topic_of(settings: Kafka, name: str) -> str:
    """The topic of a pipeline's positions."""
    return f"{settings.prefix}-positions-{name}"


def ready(settings: Kafka, topic: str, *, name: str, partitions: int) -> None:
    """See that a topic of positions is there, is kept for ever and has enough partitions."""
    cluster = Cluster(settings, name=name)
    there = cluster.partitions([topic])[topic]
    if there is None:
        cluster.make([topic], partitions, _CONFIG)
    elif 0 < there < partitions:
        cluster.widen(topic, partitions)
    policy = cluster.config(topic).get("cleanup.policy", "compact")
    if policy != "compact":
        raise SinkRefusedError(
            f"topic {topic} has cleanup.policy={policy}: positions in it would not last",
            hint=f"Set cleanup.policy=compact for {topic}, or delete it while nothing runs.",
        )


def read(settings: Kafka, *, name: str) -> dict[int, Reached]:
    """What the lanes of a pipeline have reached, as far as transactions are over."""
    topic, events = topic_of(settings, name), Events()
    own = {
        "group.id": f"{settings.prefix}-{name}",
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        # The end shows by an answer without records, for which a broker waits this long.
        "fetch.wait.max.ms": 5,
    }
    consumer = made(Consumer, base(settings, events, name=name) | own)
    try:
        return _Reading(consumer, settings, topic).all()
    except KafkaException as error:
        raise events.translate_error(cause(error), f"topic {topic}") from error
    finally:
        consumer.close()


def forget(settings: Kafka, *, name: str) -> None:
    """Take a pipeline's positions away: what it delivers next is sent, whatever Kafka holds.

    For a pipeline that is to begin again on purpose. It must not run.
    """
    topic = topic_of(settings, name)
    count = Cluster(settings, name=name).partitions([topic])[topic]
    publisher = Publisher(settings, name=name)
    try:
        for lane in range(count or 0):
            publisher.put(topic, lane, key=b"%d" % lane, value=None)
        publisher.settle()
    finally:
        publisher.close()


class _Reading:
    """The last record of every partition, found from the end backwards in growing strides."""

    def __init__(self, consumer: Consumer, settings: Kafka, topic: str) -> None:
        self._consumer = consumer
        self._timeout_s = settings.timeout_s
        self._topic = topic

    def all(self) -> dict[int, Reached]:
        listed = self._consumer.list_topics(self._topic, timeout=self._timeout_s)
        bounds = {number: self._bounds(number) for number in listed.topics[self._topic].partitions}
        found: dict[int, Message] = {}
        stride = _STRIDE
        while bounds:
            starts = {at: max(low, high - stride) for at, (low, high) in bounds.items()}
            found |= self._last(starts)
            bounds = {
                at: bound
                for at, bound in bounds.items()
                if at not in found and starts[at] > bound[0]
            }
            stride *= 8
        values = {at: message.value() for at, message in found.items()}
        return {at: Reached.load(value) for at, value in values.items() if value}

    def _bounds(self, partition: int) -> tuple[int, int]:
        place = TopicPartition(self._topic, partition)
        low, high = self._consumer.get_watermark_offsets(place, timeout=self._timeout_s)
        return low, high

    def _last(self, starts: dict[int, int]) -> dict[int, Message]:
        """The last record of each partition at or behind its start."""
        self._consumer.assign(
            [TopicPartition(self._topic, at, start) for at, start in starts.items()]
        )
        found: dict[int, Message] = {}
        open_ends = set(starts)
        deadline = time.monotonic() + self._timeout_s
        while open_ends:
            message = self._consumer.poll(_LOOK_S)
            if message is None:
                if time.monotonic() > deadline:
                    raise SinkUnreachableError(f"topic {self._topic} cannot be read: no answer")
                continue
            error, at = message.error(), message.partition() or 0
            if error is None:
                found[at] = message
            elif error.code() == KafkaError._PARTITION_EOF:
                open_ends.discard(at)
            elif error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:
                # librdkafka looks for a group, which nobody needs who chooses partitions himself.
                raise KafkaException(error)
        return found
