"""Topics as consumers see them, read without the code of the sink."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tailrace.message import MESSAGES
from tailrace.position import ORIGIN
from tailrace.sinks.contract import Lane
from tailrace.sinks.kafka.settings import KafkaSink
from tailrace.sinks.kafka.sink import Kafka
from tests import topics
from tests.unit.sinks.rows import rows, write
from tests.waiting import LONG_S

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
        """The number of the message, from its payload."""
        return int(self.value.split(b"\r\n", 1)[0])


@dataclass(frozen=True, slots=True)
class Bench:
    """A broker, a topic and the name of a pipeline."""

    bootstrap: str
    topic: str

    def settings(self, **given: Any) -> KafkaSink:
        # A busy machine may stall for seconds, and its broker then registers again.
        defaults = {"type": "kafka", "bootstrap": self.bootstrap, "timeout_s": 120}
        return KafkaSink.model_validate(defaults | given)

    def sink(self, *, lane: int = 0, lanes: int = 1, source: str = "one", **given: Any) -> Kafka:
        settings = self.settings(**given)
        return Kafka(
            settings,
            Lane(pipeline=self.topic, number=lane, lanes=lanes, history=source),
        )

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
        admin.create_topics([new])[self.topic].result(LONG_S)

    def alter(self, **config: str) -> None:
        """Change settings of the topic, and wait until the broker has applied them."""
        named = {key.replace("_", "."): value for key, value in config.items()}
        topics.alter(self.bootstrap, self.topic, named)

    def rows(self, numbers: Iterable[int], *, size: int = 0, keys: int = 0) -> pa.RecordBatch:
        """A batch of the messages with these numbers, with `keys` distinct keys."""
        chosen = list(numbers)
        made = rows(chosen, destination=self.topic.encode(), size=size)
        if not keys:
            return made
        column = pa.array([b"k%d" % (number % keys) for number in chosen], pa.binary())
        field = MESSAGES.get_field_index("key")
        return made.set_column(field, MESSAGES.field(field), column)

    def held(self, topic: str = "", **options: bool) -> list[Found]:
        """All messages of a topic, by partition and offset. The options of `topics.messages`."""
        found = topics.messages(self.bootstrap, topic or self.topic, **options)
        return [_found(one) for one in found]

    def end(self) -> int:
        """The end offset of the committed records in the topic's only partition."""
        return topics.end(self.bootstrap, TopicPartition(self.topic, 0))

    def numbers(self, *, committed: bool = True, is_open: bool = False) -> list[int]:
        return [found.number for found in self.held(committed=committed, is_open=is_open)]


def delivered(sink: Kafka, batch: pa.RecordBatch) -> Receipt:
    """Write and flush."""
    write(sink, batch)
    return sink.flush()


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
