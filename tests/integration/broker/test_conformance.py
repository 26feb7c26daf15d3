"""The same scenarios with every client library, on our broker and on a real Kafka."""

from __future__ import annotations

import shutil
import uuid
from collections import defaultdict
from typing import TYPE_CHECKING

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tailrace.testing.kafka import EmbeddedKafka
from tests.integration.broker.clients import CLIENTS, Librdkafka, Record

if TYPE_CHECKING:
    from tests.fix_broker import BrokerProcess
    from tests.integration.broker.clients import Acks, Client

COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture(params=CLIENTS)
def kind(request: pytest.FixtureRequest) -> type[Client]:
    if request.param == "java" and (reason := no_java()):
        pytest.skip(reason)
    return CLIENTS[request.param]


@pytest.fixture
def client(kind: type[Client], bootstrap: str) -> Client:
    return kind(bootstrap)


def no_java() -> str | None:
    return EmbeddedKafka.unavailable() if shutil.which("javac") else "there is no javac"


@pytest.fixture
def topic(bootstrap: str) -> str:
    return make_topic(bootstrap)


def make_topic(bootstrap: str, partitions: int = 1, **config: str) -> str:
    name = f"t-{uuid.uuid4().hex[:12]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    # The times of the records are of long ago.
    given = {"retention_ms": "-1"} | config
    settings = {key.replace("_", "."): value for key, value in given.items()}
    made = admin.create_topics([NewTopic(name, partitions, 1, config=settings)])
    made[name].result(30)
    return name


def some(count: int, *, first: int = 0, size: int = 50) -> list[Record]:
    return [
        Record(
            # Some clients want one of the two.
            key=None if number % 10 == 3 else f"key {number}".encode(),
            value=None if number % 10 == 5 else (f"value {number} " * size)[:size].encode(),
            headers=(("a", b"1"), ("a", b""), ("b", b"\xff\0")) if number % 3 == 0 else (),
            timestamp=1_700_000_000_000 + number,
        )
        for number in range(first, first + count)
    ]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_what_goes_in_comes_out(client: Client, topic: str, compression: str) -> None:
    records = some(300)
    assert client.produce(topic, records, compression=compression) == list(range(300))
    found = client.consume(topic, 300)
    assert found == records
    assert [record.offset for record in found] == list(range(300))


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_acks(client: Client, topic: str, acks: Acks) -> None:
    records = some(20)
    offsets = client.produce(topic, records, acks=acks)
    assert not acks or offsets == list(range(20))
    assert client.consume(topic, 20) == records


def test_every_client_reads_what_others_wrote(
    bootstrap: str, topic: str, kind: type[Client]
) -> None:
    for number, name in enumerate(("librdkafka", "aiokafka", "kafka-python")):
        records = some(10, first=10 * number)
        CLIENTS[name](bootstrap).produce(topic, records, compression=COMPRESSIONS[number + 1])
    assert kind(bootstrap).consume(topic, 30) == some(30)


def test_a_group_goes_on_where_it_stopped(client: Client, topic: str) -> None:
    client.produce(topic, some(30))
    group = f"g-{topic}"
    assert client.consume(topic, 12, group=group) == some(12)
    assert client.consume(topic, 18, group=group) == some(18, first=12)
    assert client.consume(topic, 30, group=f"other-{topic}") == some(30)


def test_partitions(client: Client, bootstrap: str) -> None:
    topic = make_topic(bootstrap, 3)
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
    records = some(3, size=900_000)
    client.produce(topic, records)
    assert client.consume(topic, 3) == records
    with pytest.raises(Exception, match=r"(?i)size|large"):
        client.produce(topic, some(1, size=9_000_000))
    assert client.consume(topic, 3) == records


def test_rows_are_the_records(broker: BrokerProcess, kind: type[Client]) -> None:
    client, topic = kind(broker.bootstrap), make_topic(broker.bootstrap)
    records = some(40)
    client.produce(topic, records, compression="gzip")
    rows = broker.database.query(
        'SELECT "offset", key, value, headers, (extract(epoch FROM "timestamp") * 1000)::bigint'
        " FROM kafka.records WHERE topic = %s ORDER BY 1",
        topic,
    )
    shown = [["a", "1"], ["a", ""], ["b", {"base64": "/wA="}]]
    assert rows == [
        (number, record.key, record.value, shown if record.headers else None, record.timestamp)
        for number, record in enumerate(records)
    ]


def test_nothing_at_all(bootstrap: str, topic: str, kind: type[Client]) -> None:
    """A record without a key and a value, and a header without one: not all clients send them."""
    records = [Record(headers=(("none", None), ("some", b"")))]
    Librdkafka(bootstrap).produce(topic, records)
    assert kind(bootstrap).consume(topic, 1) == records


def test_times(bootstrap: str, topic: str) -> None:
    Librdkafka(bootstrap).produce(topic, some(10))
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    at = [
        confluent_kafka.TopicPartition(topic, 0, 1_700_000_000_000 + ms) for ms in (-5, 4, 10, 11)
    ]
    found = [consumer.offsets_for_times([each], timeout=30)[0].offset for each in at]
    assert found == [0, 4, -1, -1]
    assert consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0)) == (0, 10)
    consumer.close()
