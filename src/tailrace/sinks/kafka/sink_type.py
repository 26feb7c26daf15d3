"""What Tailrace knows about the sink `kafka`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tailrace.sinks.kafka.destination import TopicTemplate
from tailrace.sinks.kafka.settings import KafkaSink
from tailrace.sinks.sink_type import Promises, SinkType

if TYPE_CHECKING:
    from tailrace.sinks.contract import Lane, Sink

# ruff: noqa: PLC0415 - confluent-kafka is an extra, and is loaded where a sink is opened


class KafkaType(SinkType[KafkaSink]):
    """One record per change, at least once, or exactly once in transactions."""

    name = "kafka"
    title = "Apache Kafka"
    settings = KafkaSink
    own_headers = re.compile("tailrace-id")
    promises = Promises(
        delivery="at least once; exactly once with `transactional: true`",
        order="per partition of a topic; a key always has the same partition",
        duplicates=(
            "An idempotent producer repeats nothing by itself; a micro-batch that was interrupted "
            "is delivered again. With `transactional: true` the position is in the transaction of "
            "the records, and consumers with `read_committed` see each record once."
        ),
        largest_message=(
            "`max_message_bytes`, and `max.message.bytes` of the topic; a larger one is parked"
        ),
        batch="librdkafka's queue; with `transactional: true` one transaction per flush",
    )

    def destination(self, template: str, *, database: str) -> TopicTemplate:
        """Fills a template of topics."""
        return TopicTemplate(template, database=database)

    def stores_position(self, settings: KafkaSink) -> bool:
        """In each transaction."""
        return settings.transactional

    def sends_alone(self, settings: KafkaSink) -> bool:
        """Without transactions, in which the position is stored."""
        return not settings.transactional

    def open(self, settings: KafkaSink, lane: Lane) -> Sink:
        """A producer."""
        from tailrace.sinks.kafka.sink import Kafka

        return Kafka(settings, lane)

    def probe(self, settings: KafkaSink, *, name: str) -> None:
        """The cluster must answer."""
        from tailrace.sinks.kafka.sink import probe

        probe(settings, name=name)


SINK = KafkaType()
