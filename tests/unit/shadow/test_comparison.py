from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.shadow.comparison import Comparison, Merge, PartitionComparison

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tailrace.shadow.comparison import Record


def record(offset: int, value: bytes = b"v", timestamp: int = 1000) -> Record:
    return (offset, timestamp, b"k", value, [("h", b"1")])


def compare(
    broker: Iterable[Record], kafka: Iterable[Record], *, first: int = 0
) -> PartitionComparison:
    result = PartitionComparison(topic="t", partition=0, first=first, next=100)
    merge = Merge(result, iter(list(broker)))
    for copy in kafka:
        merge.add(copy)
    merge.finish()
    return result


def records(*offsets: int) -> list[Record]:
    return [record(offset) for offset in offsets]


@pytest.mark.parametrize(
    ("broker", "kafka", "compared", "difference"),
    [
        ((), (), 0, ""),
        ((1, 2, 3), (1, 2, 3), 3, ""),
        ((1, 2, 3), (1, 3), 2, "offset 2 is missing in Kafka"),
        ((1, 2, 3), (1, 2), 2, "offset 3 is missing in Kafka"),
        ((1, 2, 3), (), 0, "offset 1 is missing in Kafka"),
        ((1, 3), (1, 2, 3), 2, "offset 2 is missing in PostgreSQL"),
        ((), (1,), 0, "offset 1 is missing in PostgreSQL"),
        ((1, 4), (2, 3, 4), 1, "offset 1 is missing in Kafka"),
    ],
)
def test_the_first_difference_is_noted(
    broker: tuple[int, ...], kafka: tuple[int, ...], compared: int, difference: str
) -> None:
    result = compare(records(*broker), records(*kafka))
    assert (result.compared, result.difference) == (compared, difference)


def test_records_before_the_first_offset_may_be_missing_in_postgresql() -> None:
    result = compare(records(5, 6), records(3, 4, 5, 6), first=5)
    assert (result.compared, result.difference) == (2, "")
    assert result.safe


def test_different_records_have_different_checksums() -> None:
    result = compare([record(1), record(2)], [record(1), record(2, b"other")])
    assert (result.compared, result.difference) == (2, "offset 2 differs")
    assert result.checksum != result.kafka_checksum
    same = compare(records(1, 2), records(1, 2))
    assert same.checksum == same.kafka_checksum == result.checksum


def test_a_timestamp_of_zero_is_not_compared() -> None:
    """librdkafka replaces it; of a topic with LogAppendTime, `verify` passes 0."""
    assert compare([record(1, timestamp=0)], [record(1, timestamp=5)]).safe
    assert compare([record(1, timestamp=5)], [record(1, timestamp=0)]).safe
    assert not compare([record(1, timestamp=1)], [record(1, timestamp=5)]).safe


def test_a_copy_with_lag_is_not_safe() -> None:
    result = compare(records(1), records(1))
    result.lag = 3
    assert not result.safe
    assert not Comparison(partitions=[compare([], []), result]).safe
    assert Comparison(partitions=[compare([], [])]).safe
