"""Topics over there: made like the broker's, and read back."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tailrace.errors import SinkRefusedError, SinkUnreachableError
from tailrace.sinks.kafka.client import client_config, create_client
from tailrace.sinks.kafka.failures import Events, cause
from tailrace.sinks.kafka.topics import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from confluent_kafka import Message

    from tailrace.shadow.source import BrokerTopic
    from tailrace.sinks.kafka.settings import Kafka

_LOOK_S = 0.2
_SOME = 5000
_COPIED = ("retention.ms", "retention.bytes", "message.timestamp.type")
"""Settings that a topic over there is made with."""


class Targets:
    """Topics that records may go to, each looked at once."""

    def __init__(self, settings: Kafka, *, name: str) -> None:
        self._settings = settings
        self._name = name
        self._known: set[tuple[str, int]] = set()

    def ready(self, topic: BrokerTopic) -> bool:
        """See that a topic is there, with as many partitions as here. Whether it was looked at."""
        if (topic.name, topic.partitions) in self._known:
            return False
        cluster = Cluster(self._settings, name=self._name)
        there = cluster.partitions([topic.name])[topic.name]
        if there is None:
            self._make(cluster, topic)
        elif there == 0:
            raise SinkUnreachableError(f"topic {topic.name} has partitions without a leader")
        elif there < topic.partitions:
            cluster.add_partitions(topic.name, topic.partitions)
        elif there > topic.partitions:
            raise SinkRefusedError(
                f"topic {topic.name} has {there} partitions in Kafka and {topic.partitions} here: "
                "keys would change their partitions with the move",
                hint="Give it as many here (CreatePartitions), or leave it out: "
                f"tailrace shadow off {topic.name}",
            )
        self._known.add((topic.name, topic.partitions))
        return True

    def _make(self, cluster: Cluster, topic: BrokerTopic) -> None:
        if not self._settings.create:
            raise SinkRefusedError(
                f"there is no topic {topic.name} in Kafka",
                hint=f"Create it with {topic.partitions} partitions, or set `create: true`.",
            )
        config = {name: topic.config[name] for name in _COPIED if name in topic.config}
        config["max.message.bytes"] = str(self._settings.max_message_bytes)
        cluster.create([topic.name], topic.partitions, config)


def committed(
    settings: Kafka, topic: str, partition: int, *, name: str, first: int = 0
) -> Iterator[Message]:
    """The records of a partition up to where transactions are over, from an offset on."""
    events = Events()
    own = {
        "group.id": f"{settings.prefix}-{name}",
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
        # The end shows by an answer without records, for which a broker waits this long.
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
    heard = time.monotonic()
    while True:
        # The first as soon as it comes; then those that have come with it.
        first = consumer.poll(_LOOK_S)
        found = [] if first is None else [first, *consumer.consume(_SOME, 0)]
        for message in found:
            error = message.error()
            if error is None:
                yield message
            elif error.code() == KafkaError._PARTITION_EOF:
                return
            elif error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:
                raise KafkaException(error)
        if found:
            heard = time.monotonic()
        elif time.monotonic() - heard > timeout_s:
            raise SinkUnreachableError(f"{what} cannot be read: no answer")


def bounds(settings: Kafka, topic: str, partition: int, *, name: str) -> tuple[int, int]:
    """The first offset a partition holds, and the next it will give."""
    events = Events()
    consumer = create_client(
        Consumer,
        client_config(settings, events, name=name) | {"group.id": f"{settings.prefix}-{name}"},
    )
    try:
        low, high = consumer.get_watermark_offsets(
            TopicPartition(topic, partition), timeout=settings.timeout_s
        )
    except KafkaException as error:
        raise events.translate_error(cause(error), f"topic {topic}") from error
    finally:
        consumer.close()
    return low, high
