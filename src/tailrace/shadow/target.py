"""Topics of Kafka: created like the broker's, and read back."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tailrace.errors import SinkRefusedError, SinkUnreachableError
from tailrace.sinks.kafka.client import client_config, create_client
from tailrace.sinks.kafka.failures import Events, cause
from tailrace.sinks.kafka.topics import Cluster

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from confluent_kafka import Message

    from tailrace.shadow.ledger import PartitionCopy
    from tailrace.shadow.source import BrokerTopic
    from tailrace.sinks.kafka.settings import Kafka

_POLL_S = 0.2
_MAX_MESSAGES = 5000
_COPIED_CONFIG = ("retention.ms", "retention.bytes", "message.timestamp.type")
"""Settings that a new topic in Kafka gets from the broker's topic."""


class Targets:
    """Checks and creates topics, each once."""

    def __init__(self, settings: Kafka, *, name: str) -> None:
        self._settings = settings
        self._name = name
        self._known: set[tuple[str, int]] = set()

    def ready(self, topic: BrokerTopic) -> bool:
        """Create a topic, or add partitions to it. Returns False if it was checked before."""
        if (topic.name, topic.partitions) in self._known:
            return False
        cluster = Cluster(self._settings, name=self._name)
        partitions = cluster.partitions([topic.name])[topic.name]
        if partitions is None:
            self._create(cluster, topic)
            # Another client may have created it meanwhile.
            partitions = cluster.partitions([topic.name])[topic.name] or 0
        if partitions == 0:
            raise SinkUnreachableError(f"topic {topic.name} has partitions without a leader")
        if partitions < topic.partitions:
            cluster.add_partitions(topic.name, topic.partitions)
        elif partitions > topic.partitions:
            raise SinkRefusedError(
                f"topic {topic.name} has {partitions} partitions in Kafka and {topic.partitions} "
                "in the broker: clients would choose other partitions for keys after the move",
                hint="Add partitions to the broker's topic (CreatePartitions), or do not copy it: "
                f"tailrace shadow off {topic.name}",
            )
        self._known.add((topic.name, topic.partitions))
        return True

    def gone(self, copies: Collection[tuple[int, PartitionCopy]]) -> set[str]:
        """Topics of which Kafka cannot have all that was copied: deleted, or created again since.

        `copies` are partitions and their copies.
        """
        places = {(copy.topic, partition): copy for partition, copy in copies}
        ends = Cluster(self._settings, name=self._name).ends(places.keys())
        gone = {
            copy.topic
            for place, copy in places.items()
            if place in ends and (ends[place] or 0) < copy.base + copy.count
        }
        self._known = {(topic, count) for topic, count in self._known if topic not in gone}
        return gone

    def is_deleted(self, topic: BrokerTopic) -> bool:
        """Whether a copied topic is gone from Kafka, or was created again and is empty."""
        partitions = Cluster(self._settings, name=self._name).partitions([topic.name])[topic.name]
        if partitions is None:
            return True
        # 0: a partition has no leader yet.
        return partitions > 0 and all(self.is_empty(topic, each) for each in range(partitions))

    def is_empty(self, topic: BrokerTopic, partition: int) -> bool:
        """Whether a partition has no committed records."""
        messages = committed(self._settings, topic.name, partition, name=self._name)
        return next(messages, None) is None

    def _create(self, cluster: Cluster, topic: BrokerTopic) -> None:
        if not self._settings.create:
            raise SinkRefusedError(
                f"topic {topic.name} does not exist in Kafka",
                hint=f"Create it with {topic.partitions} partitions, or set `create: true`.",
            )
        config = {name: topic.config[name] for name in _COPIED_CONFIG if name in topic.config}
        config["max.message.bytes"] = str(self._settings.max_message_bytes)
        cluster.create([topic.name], topic.partitions, config)


def committed(
    settings: Kafka, topic: str, partition: int, *, name: str, first: int = 0
) -> Iterator[Message]:
    """The committed records of a partition, from offset `first` to the last stable offset."""
    events = Events()
    own = {
        "group.id": f"{settings.prefix}-{name}",
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
        # A response without records marks the end; the broker delays it by this long.
        "fetch.wait.max.ms": 5,
    }
    consumer = create_client(Consumer, client_config(settings, events, name=name) | own)
    try:
        consumer.assign([TopicPartition(topic, partition, first)])
        yield from _until_end(consumer, settings.timeout_s, f"topic {topic}")
    except KafkaException as error:
        raise events.translate_error(cause(error), f"topic {topic}") from error
    finally:
        consumer.close()


def _until_end(consumer: Consumer, timeout_s: float, what: str) -> Iterator[Message]:
    received_at = time.monotonic()
    while True:
        # The first message as soon as it arrives, then those that arrived with it.
        first = consumer.poll(_POLL_S)
        messages = [] if first is None else [first, *consumer.consume(_MAX_MESSAGES, 0)]
        for message in messages:
            error = message.error()
            if error is None:
                yield message
            elif error.code() == KafkaError._PARTITION_EOF:
                return
            elif error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:
                raise KafkaException(error)
        if messages:
            received_at = time.monotonic()
        elif time.monotonic() - received_at > timeout_s:
            raise SinkUnreachableError(f"cannot read {what}: no response for {timeout_s:g} s")


def is_open(settings: Kafka, topic: str, partition: int, *, name: str) -> bool:
    """Whether a partition has records of a transaction without a marker of its end."""
    _, stable = bounds(settings, topic, partition, name=name)
    _, end = bounds(settings, topic, partition, name=name, committed=False)
    return stable < end


def bounds(
    settings: Kafka, topic: str, partition: int, *, name: str, committed: bool = True
) -> tuple[int, int]:
    """The first offset of a partition, and the next one, of committed records or of all."""
    events = Events()
    own = {
        "group.id": f"{settings.prefix}-{name}",
        "isolation.level": "read_committed" if committed else "read_uncommitted",
    }
    consumer = create_client(Consumer, client_config(settings, events, name=name) | own)
    try:
        low, high = consumer.get_watermark_offsets(
            TopicPartition(topic, partition), timeout=settings.timeout_s
        )
    except KafkaException as error:
        raise events.translate_error(cause(error), f"topic {topic}") from error
    finally:
        consumer.close()
    return low, high
