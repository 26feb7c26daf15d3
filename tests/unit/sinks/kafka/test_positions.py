"""Reading the last committed record of each partition, with a consumer in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from tailrace.errors import SinkUnreachableError
from tailrace.position import ORIGIN
from tailrace.sinks.kafka.positions import _LastRecords
from tailrace.sinks.kafka.settings import KafkaSink
from tailrace.sinks.ledger import LanePosition
from tests.unit.sinks.rows import position

if TYPE_CHECKING:
    from confluent_kafka import TopicPartition

SETTINGS = KafkaSink(type="kafka", timeout_s=10)


class Record:
    """A record, or an event of a partition."""

    def __init__(self, partition: int, value: bytes | None = None, code: int | None = None) -> None:
        self._partition, self._value, self._code = partition, value, code

    def partition(self) -> int:
        return self._partition

    def value(self) -> bytes | None:
        return self._value

    def error(self) -> KafkaError | None:
        return None if self._code is None else KafkaError(self._code)


class FakeConsumer:
    """Partitions as their visible records by offset, and their end offsets."""

    def __init__(self, partitions: dict[int, tuple[dict[int, bytes | None], int]]) -> None:
        self._partitions = partitions
        self._queue: list[Record] = []
        self.starts: list[dict[int, int]] = []
        self.extra: list[Record] = []
        self.silent = False

    def list_topics(self, topic: str, timeout: float) -> Any:
        assert timeout == 10
        listed = type("Topic", (), {"partitions": self._partitions})
        return type("Listed", (), {"topics": {topic: listed}})

    def get_watermark_offsets(self, place: TopicPartition, timeout: float) -> tuple[int, int]:
        assert timeout == 10
        return 0, self._partitions[place.partition][1]

    def assign(self, places: list[TopicPartition]) -> None:
        self.starts.append({place.partition: place.offset for place in places})
        self._queue = list(self.extra)
        for place in places:
            records, _ = self._partitions[place.partition]
            self._queue += [
                Record(place.partition, value)
                for offset, value in sorted(records.items())
                if offset >= place.offset
            ]
            self._queue.append(Record(place.partition, code=KafkaError._PARTITION_EOF))

    def poll(self, _timeout: float) -> Record | None:
        return self._queue.pop(0) if self._queue and not self.silent else None


def stored(lane: int) -> LanePosition:
    return LanePosition(
        position=position(9), after=ORIGIN, source="s", lane=lane, lanes=2, count=10, digest=1
    )


def reader(consumer: FakeConsumer, **given: Any) -> _LastRecords:
    return _LastRecords(consumer, SETTINGS, "positions", **given)  # type: ignore[arg-type]


def test_the_last_record_of_each_partition_is_read_at_once() -> None:
    consumer = FakeConsumer(
        {0: ({3: b"old", 4: stored(0).dump()}, 6), 1: ({0: stored(1).dump()}, 1)}
    )
    assert reader(consumer).positions() == {0: stored(0), 1: stored(1)}
    assert consumer.starts == [{0: 0, 1: 0}]


def test_the_search_goes_back_in_growing_strides_over_aborted_records() -> None:
    consumer = FakeConsumer({0: ({5: stored(0).dump()}, 1000), 1: ({999: stored(1).dump()}, 1000)})
    assert reader(consumer).positions() == {0: stored(0), 1: stored(1)}
    assert consumer.starts == [{0: 984, 1: 984}, {0: 872}, {0: 0}]


def test_partitions_without_a_position_are_left_out() -> None:
    consumer = FakeConsumer({0: ({}, 40), 1: ({3: None}, 4)})
    assert reader(consumer).positions() == {}
    assert consumer.starts == [{0: 24, 1: 0}, {0: 0}]


def test_the_right_to_use_the_group_is_not_needed() -> None:
    consumer = FakeConsumer({0: ({0: stored(0).dump()}, 1)})
    consumer.extra = [Record(0, code=KafkaError.GROUP_AUTHORIZATION_FAILED)]
    assert reader(consumer).positions() == {0: stored(0)}
    consumer.extra = [Record(0, code=KafkaError.TOPIC_AUTHORIZATION_FAILED)]
    with pytest.raises(KafkaException):
        reader(consumer).positions()


def test_a_topic_without_an_answer_times_out() -> None:
    consumer = FakeConsumer({0: ({}, 1)})
    consumer.silent = True
    now = iter(range(0, 1000, 4))
    with pytest.raises(SinkUnreachableError, match="topic positions cannot be read: no answer"):
        reader(consumer, clock=lambda: float(next(now))).positions()
