"""What Tailrace knows about the sink `shadow`: records of the broker into a real Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.shadow.settings import ShadowSink
from tailrace.sinks.kafka.destination import TopicTemplate
from tailrace.sinks.sink_type import Promises, SinkType

if TYPE_CHECKING:
    from tailrace.sinks.contract import Lane, Sink

# ruff: noqa: PLC0415 - confluent-kafka is an extra, and is loaded where a sink is opened


class ShadowType(SinkType[ShadowSink]):
    """Every record of the broker once, in its own topic and partition."""

    name = "shadow"
    title = "Apache Kafka (shadow of the broker)"
    settings = ShadowSink
    promises = Promises(
        delivery="exactly once",
        order="per partition, by the broker's offsets",
        duplicates="The ledger of offsets is in the transaction of the records.",
        largest_message="`max_message_bytes`",
        batch="one Kafka transaction per flush",
    )
    records = True

    def destination(self, template: str, *, database: str) -> TopicTemplate:
        """Not used: a record goes to the topic it belongs to."""
        return TopicTemplate(template, database=database)

    def open(self, settings: ShadowSink, lane: Lane) -> Sink:
        """A transactional producer."""
        from tailrace.shadow.sink import Shadow

        return Shadow(settings, name=lane.pipeline)

    def probe(self, settings: ShadowSink, *, name: str) -> None:
        """The cluster must answer."""
        from tailrace.sinks.kafka.sink import probe

        probe(settings, name=name)


SINK = ShadowType()
