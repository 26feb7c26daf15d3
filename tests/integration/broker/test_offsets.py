"""Offsets: positions, commits, timestamps and bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.integration.broker.refusals import refused
from tests.integration.broker.samples import sample_records

if TYPE_CHECKING:
    from tests.integration.broker.clients import Client

NO_POSITION = {
    "Librdkafka": "_AUTO_OFFSET_RESET",
    "Aiokafka": "NoOffsetForPartitionError",
    "KafkaPython": "NoOffsetForPartitionError",
    "Java": "NoOffsetForPartitionException",
}
OUT_OF_RANGE = {
    "Librdkafka": "_AUTO_OFFSET_RESET",
    "Aiokafka": "OFFSET_OUT_OF_RANGE",
    "KafkaPython": "OFFSET_OUT_OF_RANGE",
    "Java": "OffsetOutOfRangeException",
}


def test_committed_offsets_are_read_back(client: Client, topic: str) -> None:
    client.produce(topic, sample_records(9), acks=1)
    group = f"g-{topic}"
    assert client.committed(group, topic) is None
    client.commit(group, topic, 4, "half of it, ½")
    assert client.committed(group, topic) == (4, "half of it, ½")
    assert client.consume(topic, 3, group=group) == sample_records(3, first=4)
    assert client.committed(group, topic) == (7, "")
    client.commit(group, topic, 2)
    assert client.consume(topic, 7, group=group) == sample_records(7, first=2)


def test_invalid_commits_are_refused(client: Client, topic: str) -> None:
    group = f"g-{topic}"
    with refused(client, "OFFSET_METADATA_TOO_LARGE"):
        client.commit(group, topic, 1, "x" * 4097)
    assert client.committed(group, topic) is None


def test_consuming_from_an_offset(client: Client, topic: str) -> None:
    client.produce(topic, sample_records(10), acks=1)
    assert client.consume(topic, 3, start=5) == sample_records(3, first=5)
    assert client.consume(topic, 10, start=0) == sample_records(10)


def test_offsets_by_timestamp(client: Client, topic: str) -> None:
    assert client.bounds(topic) == (0, 0)
    assert client.at_times(topic, [0]) == [None]
    client.produce(topic, sample_records(10), acks=1)
    times = [1_700_000_000_000 + ms for ms in (-5, 0, 4, 9, 10)]
    assert client.at_times(topic, times) == [0, 0, 4, 9, None]
    assert client.bounds(topic) == (0, 10)
    client.cut(topic, 6)
    assert client.bounds(topic) == (6, 10)
    assert client.at_times(topic, times) == [6, 6, 6, 9, None]


def test_consuming_without_a_start_offset(client: Client, topic: str) -> None:
    """Without a valid offset, `auto.offset.reset` decides."""
    client.produce(topic, sample_records(10), acks=1)
    with refused(client, NO_POSITION):
        client.consume(topic, 1, group=f"g-{topic}", reset="none")
    with refused(client, OUT_OF_RANGE):
        client.consume(topic, 1, start=1000, reset="none")
    client.cut(topic, 6)
    with refused(client, OUT_OF_RANGE):
        client.consume(topic, 1, start=2, reset="none")
    assert client.consume(topic, 4, start=2, reset="earliest") == sample_records(4, first=6)
