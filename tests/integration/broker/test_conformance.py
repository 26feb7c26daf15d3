"""The same scenarios with every client library, on the broker and on Kafka."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

from tests.fix_broker import KAFKA_MESSAGE_BYTES
from tests.integration.broker.clients import CLIENTS, Librdkafka, Record
from tests.integration.broker.refusals import refused
from tests.integration.broker.samples import create_topic, sample_records

if TYPE_CHECKING:
    from tests.fix_broker import BrokerProcess
    from tests.integration.broker.clients import Acks, Client

COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_records_are_consumed_as_produced(client: Client, topic: str, compression: str) -> None:
    records = sample_records(300)
    assert client.produce(topic, records, compression=compression) == list(range(300))
    found = client.consume(topic, 300)
    assert found == records
    assert [record.offset for record in found] == list(range(300))


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_acks(client: Client, topic: str, acks: Acks) -> None:
    records = sample_records(20)
    offsets = client.produce(topic, records, acks=acks)
    assert not acks or offsets == list(range(20))
    assert client.consume(topic, 20) == records


def test_every_client_reads_records_of_every_client(
    bootstrap: str, topic: str, kind: type[Client]
) -> None:
    for number, name in enumerate(("librdkafka", "aiokafka", "kafka-python")):
        records = sample_records(10, first=10 * number)
        CLIENTS[name](bootstrap).produce(topic, records, compression=COMPRESSIONS[number + 1])
    assert kind(bootstrap).consume(topic, 30) == sample_records(30)


def test_a_group_resumes_at_its_committed_offset(client: Client, topic: str) -> None:
    client.produce(topic, sample_records(30))
    group = f"g-{topic}"
    assert client.consume(topic, 12, group=group) == sample_records(12)
    assert client.consume(topic, 18, group=group) == sample_records(18, first=12)
    assert client.consume(topic, 30, group=f"other-{topic}") == sample_records(30)


def test_partitions(client: Client, bootstrap: str) -> None:
    topic = create_topic(bootstrap, 3)
    records = [
        Record(value=str(number).encode(), partition=number % 3, timestamp=1_700_000_000_000)
        for number in range(90)
    ]
    client.produce(topic, records)
    found = defaultdict(list)
    for record in client.consume(topic, 90):
        found[record.partition].append(record)
    for partition in range(3):
        assert found[partition] == records[partition::3]
        assert [record.offset for record in found[partition]] == list(range(30))


def test_large_messages(client: Client, topic: str) -> None:
    """Up to the max size of a batch; all but a few bytes are the record."""
    records = sample_records(3, size=KAFKA_MESSAGE_BYTES - 150)
    client.produce(topic, records)
    assert client.consume(topic, 3) == records
    with refused(client, "MESSAGE_TOO_LARGE"):
        client.produce(topic, sample_records(1, size=KAFKA_MESSAGE_BYTES))
    assert client.bounds(topic) == (0, 3)


def test_rows_are_the_records(broker: BrokerProcess, kind: type[Client]) -> None:
    client, topic = kind(broker.bootstrap), create_topic(broker.bootstrap)
    records = sample_records(40)
    client.produce(topic, records, compression="gzip")
    rows = broker.database.query(
        'SELECT "offset", key, value, headers, (extract(epoch FROM "timestamp") * 1000)::bigint'
        " FROM kafka.records WHERE topic = %s ORDER BY 1",
        topic,
    )
    headers = [["a", "1"], ["a", ""], ["b", {"base64": "/wA="}]]
    assert rows == [
        (number, record.key, record.value, headers if record.headers else None, record.timestamp)
        for number, record in enumerate(records)
    ]


def test_empty_keys_and_values(bootstrap: str, topic: str, kind: type[Client]) -> None:
    """A record without key and value, and a header without value: not all clients send them."""
    records = [Record(headers=(("none", None), ("some", b"")))]
    Librdkafka(bootstrap).produce(topic, records)
    assert kind(bootstrap).consume(topic, 1) == records
