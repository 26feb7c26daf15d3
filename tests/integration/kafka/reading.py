"""Topics as consumers find them, read with clients that are not the sink's code."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from confluent_kafka import Consumer, IsolationLevel, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewTopic

from tailrace.config.kafka import KafkaSink
from tailrace.message import MESSAGES
from tailrace.position import ORIGIN
from tailrace.sinks.kafka import Kafka
from tests.unit.sinks.rows import rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tailrace.position import Position
    from tailrace.sinks.contract import Receipt


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A message in a topic."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes
    id: str
    timestamp_ms: int

    @property
    def number(self) -> int:
        """Which of the numbered messages it is."""
        return int(self.value.split(b"\r\n", 1)[0])


@dataclass(frozen=True, slots=True)
class Bench:
    """A broker, a topic and the name of a pipeline."""

    bootstrap: str
    topic: str

    def settings(self, **given: Any) -> KafkaSink:
        return KafkaSink.model_validate({"type": "kafka", "bootstrap": self.bootstrap, **given})

    def sink(self, *, lane: int = 0, lanes: int = 1, source: str = "one", **given: Any) -> Kafka:
        settings = self.settings(**given)
        return Kafka(settings, name=self.topic, lane=lane, lanes=lanes, source=source)

    @contextlib.contextmanager
    def opened(self, after: Position = ORIGIN, **given: Any) -> Iterator[Kafka]:
        sink = self.sink(**given)
        sink.open(after)
        try:
            yield sink
        finally:
            sink.close()

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def make(self, partitions: int = 1, **config: str) -> None:
        named = {key.replace("_", "."): value for key, value in config.items()}
        new = NewTopic(self.topic, partitions, 1, config=named)
        admin = self.admin()
        admin.create_topics([new])[self.topic].result(20)

    def rows(self, numbers: Iterable[int], *, size: int = 0, keys: int = 0) -> pa.RecordBatch:
        """The messages of these numbers, with so many keys."""
        chosen = list(numbers)
        made = rows(chosen, destination=self.topic.encode(), size=size)
        if not keys:
            return made
        column = pa.array([b"k%d" % (number % keys) for number in chosen], pa.binary())
        field = MESSAGES.get_field_index("key")
        return made.set_column(field, MESSAGES.field(field), column)

    def held(
        self, topic: str = "", *, committed: bool = True, timeout_s: float = 30
    ) -> list[Found]:
        """Everything in a topic, by partition and offset."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "reading",
                "isolation.level": "read_committed" if committed else "read_uncommitted",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "log_level": 0,
            }
        )
        try:
            return _all(consumer, topic or self.topic, timeout_s)
        finally:
            consumer.close()

    def end(self) -> int:
        """Where the committed part of the topic's only partition ends."""
        place = TopicPartition(self.topic, 0)
        admin = self.admin()
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        asked = admin.list_offsets({place: latest}, isolation_level=IsolationLevel.READ_COMMITTED)
        return int(asked[place].result(20).offset)

    def numbers(self, *, committed: bool = True) -> list[int]:
        return [found.number for found in self.held(committed=committed)]


def delivered(sink: Kafka, batch: pa.RecordBatch) -> Receipt:
    """Write and flush."""
    sink.write(batch)
    return sink.flush()


def _all(consumer: Consumer, topic: str, timeout_s: float) -> list[Found]:
    partitions = list(consumer.list_topics(topic, timeout=10).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    found, ends = [], set(partitions)
    deadline = time.monotonic() + timeout_s
    while ends:
        assert time.monotonic() < deadline, f"{topic} has no end"
        for message in consumer.consume(1000, timeout=0.5):
            error = message.error()
            if error is None:
                found.append(_found(message))
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ends.discard(message.partition())
    return sorted(found, key=lambda one: (one.partition, one.offset))


def _found(message: Any) -> Found:
    headers = dict(message.headers() or [])
    return Found(
        partition=message.partition(),
        offset=message.offset(),
        key=message.key(),
        value=message.value(),
        id=headers.get("tailrace-id", b"").decode(),
        timestamp_ms=message.timestamp()[1],
    )
