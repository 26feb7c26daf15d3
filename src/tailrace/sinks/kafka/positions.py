"""The position of each lane of a pipeline, in a compacted topic that the pipeline owns.

Each lane has its own partition and writes its position in the transaction that carries its
messages, so a position is committed if and only if its messages are. One partition per lane,
because a reader of committed records does not see past an open transaction, and other lanes
have one open most of the time.

Consumer groups could hold positions too. But Kafka deletes their offsets after a week without a
commit (`offsets.retention.minutes`) and together with the topic they belong to.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tailrace.errors import SinkRefusedError, SinkUnreachableError
from tailrace.sinks.kafka.client import client_config, create_client
from tailrace.sinks.kafka.failures import Events, cause
from tailrace.sinks.kafka.topics import Cluster
from tailrace.sinks.ledger import LanePosition

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka import Message

    from tailrace.sinks.kafka.settings import Kafka

_FIRST_STRIDE = 16
_STRIDE_FACTOR = 8
_POLL_S = 0.2
_CONFIG = {"cleanup.policy": "compact", "segment.bytes": str(16 * 2**20)}


def topic_of(settings: Kafka, name: str) -> str:
    """The topic that holds the positions of a pipeline."""
    return f"{settings.prefix}-positions-{name}"


def ensure_topic(settings: Kafka, topic: str, *, name: str, partitions: int) -> None:
    """Create a topic of positions or add partitions; refuse one that Kafka does not compact."""
    cluster = Cluster(settings, name=name)
    existing = cluster.partitions([topic])[topic]
    if existing is None:
        cluster.create([topic], partitions, _CONFIG)
    elif 0 < existing < partitions:
        cluster.add_partitions(topic, partitions)
    policy = cluster.config(topic).get("cleanup.policy", "compact")
    if policy != "compact":
        raise SinkRefusedError(
            f"topic {topic} has cleanup.policy={policy}: Kafka would delete positions in it",
            hint=f"Set cleanup.policy=compact for {topic}, or stop the pipeline and delete it.",
        )


def read(settings: Kafka, *, name: str) -> dict[int, LanePosition]:
    """The committed position of each lane of a pipeline."""
    topic, events = topic_of(settings, name), Events()
    own = {
        "group.id": f"{settings.prefix}-{name}",
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        # A broker waits this long before it answers without records, which marks the end.
        "fetch.wait.max.ms": 5,
    }
    consumer = create_client(Consumer, client_config(settings, events, name=name) | own)
    try:
        return _LastRecords(consumer, settings, topic).positions()
    except KafkaException as error:
        raise events.translate_error(cause(error), f"topic {topic}") from error
    finally:
        consumer.close()


class _LastRecords:
    """Reads the last committed record of every partition.

    The reader searches backwards in growing strides: aborted transactions leave offsets without
    visible records, so the last record may be well before the end of the partition.
    """

    def __init__(
        self,
        consumer: Consumer,
        settings: Kafka,
        topic: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._consumer = consumer
        self._timeout_s = settings.timeout_s
        self._topic = topic
        self._clock = clock

    def positions(self) -> dict[int, LanePosition]:
        """The position in the last record of each partition that has one."""
        listed = self._consumer.list_topics(self._topic, timeout=self._timeout_s)
        bounds = {number: self._bounds(number) for number in listed.topics[self._topic].partitions}
        last: dict[int, Message] = {}
        stride = _FIRST_STRIDE
        while bounds:
            starts = {number: max(low, high - stride) for number, (low, high) in bounds.items()}
            last |= self._last_since(starts)
            bounds = {
                number: bound
                for number, bound in bounds.items()
                if number not in last and starts[number] > bound[0]
            }
            stride *= _STRIDE_FACTOR
        values = {number: message.value() for number, message in last.items()}
        return {number: LanePosition.load(value) for number, value in values.items() if value}

    def _bounds(self, partition: int) -> tuple[int, int]:
        place = TopicPartition(self._topic, partition)
        low, high = self._consumer.get_watermark_offsets(place, timeout=self._timeout_s)
        return low, high

    def _last_since(self, starts: dict[int, int]) -> dict[int, Message]:
        """The last record of each partition at or after its start offset."""
        self._consumer.assign(
            [TopicPartition(self._topic, number, start) for number, start in starts.items()]
        )
        last: dict[int, Message] = {}
        unfinished = set(starts)
        deadline = self._clock() + self._timeout_s
        while unfinished:
            message = self._consumer.poll(_POLL_S)
            if message is None:
                if self._clock() > deadline:
                    raise SinkUnreachableError(f"topic {self._topic} cannot be read: no answer")
                continue
            error, number = message.error(), message.partition() or 0
            if error is None:
                last[number] = message
            elif error.code() == KafkaError._PARTITION_EOF:
                unfinished.discard(number)
            elif error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:
                # librdkafka looks up the group's coordinator even for assigned partitions; the
                # right to use the group is not needed.
                raise KafkaException(error)
        return last
