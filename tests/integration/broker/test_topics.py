"""Topics are created, grown, emptied and deleted with the tools of every client."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.fix_broker import BrokerProcess
from tests.integration.broker.clients import Librdkafka, Record
from tests.integration.broker.clients.aiokafka import Aiokafka
from tests.integration.broker.refusals import refused
from tests.integration.broker.samples import create_topic, sample_records
from tests.waiting import LONG_S, wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fix_postgres import Database
    from tests.integration.broker.clients import Client


@pytest.mark.parametrize(
    ("name", "partitions", "settings", "error"),
    [
        ("bad name", 1, {}, "INVALID_TOPIC_EXCEPTION"),
        ("x" * 250, 1, {}, "INVALID_TOPIC_EXCEPTION"),
        ("fine", 0, {}, "INVALID_PARTITIONS"),
        ("fine", 1, {"retention.ms": "soon"}, "INVALID_CONFIG"),
        ("fine", 1, {"no.such.setting": "1"}, "INVALID_CONFIG"),
    ],
)
def test_invalid_topics_are_refused(
    client: Client, name: str, partitions: int, settings: dict[str, str], error: str
) -> None:
    with refused(client, error):
        client.create(name, partitions, settings)


def test_a_replication_factor_is_refused(admin: AdminClient) -> None:
    with pytest.raises(KafkaException, match="INVALID_REPLICATION_FACTOR"):
        admin.create_topics([NewTopic("fine", 1, 3)])["fine"].result(LONG_S)


def test_a_topic_is_created_once(client: Client) -> None:
    topic = f"t-{uuid.uuid4().hex[:12]}"
    with refused(client, "UNKNOWN_TOPIC_OR_PARTITION"):
        client.partitions(topic)
    client.create(topic, 3, {"retention.ms": "-1"})
    # Kafka responds before all of its parts know the topic.
    wait_for(lambda: known(client, topic) == 3, "the topic")
    with refused(client, "TOPIC_ALREADY_EXISTS"):
        client.create(topic, 1, {})
    client.produce(topic, [Record(value=b"v", partition=2)], acks=1)
    assert client.consume(topic, 1) == [Record(value=b"v", partition=2)]


def known(client: Client, topic: str) -> int:
    """The number of partitions that a client sees; 0 if the topic does not exist."""
    try:
        return client.partitions(topic)
    except Exception as error:
        if client.refusal(error) != "UNKNOWN_TOPIC_OR_PARTITION":
            raise
        return 0


def test_partitions_are_added(client: Client, topic: str) -> None:
    client.grow(topic, 3)
    wait_for(lambda: client.partitions(topic) == 3, "more partitions")
    for count in (2, 3):
        with refused(client, "INVALID_PARTITIONS"):
            client.grow(topic, count)
    with refused(client, "UNKNOWN_TOPIC_OR_PARTITION"):
        client.grow(f"no-{topic}", 3)
    client.produce(topic, [Record(value=b"1", partition=2)], acks=1)


def test_a_topic_is_deleted(client: Client, topic: str) -> None:
    client.produce(topic, sample_records(3), acks=1)
    client.delete(topic)
    wait_for(lambda: known(client, topic) == 0, "the topic to be deleted")
    with refused(client, "UNKNOWN_TOPIC_OR_PARTITION"):
        client.delete(topic)
    client.create(topic, 1, {"retention.ms": "-1"})
    wait_for(lambda: known(client, topic) == 1, "the topic")
    assert client.bounds(topic) == (0, 0)


def test_a_deleted_topic_leaves_nothing(broker: BrokerProcess) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    topic = create_topic(broker.bootstrap)
    client = Librdkafka(broker.bootstrap)
    client.produce(topic, sample_records(10))
    client.consume(topic, 10, group=f"g-{topic}")
    admin.delete_topics([topic])[topic].result(LONG_S)
    held = "SELECT count(*) FROM kafka.records WHERE topic = %s"
    assert broker.database.query(held, topic) == [(0,)]
    again = NewTopic(topic, 1, 1, config={"retention.ms": "-1"})
    admin.create_topics([again])[topic].result(LONG_S)
    fresh = [Record(value=b"fresh")]
    assert Librdkafka(broker.bootstrap).produce(topic, fresh) == [0]
    assert Librdkafka(broker.bootstrap).consume(topic, 1, group=f"g-{topic}") == fresh


def test_records_before_an_offset_are_deleted(client: Client, topic: str) -> None:
    client.produce(topic, sample_records(10), acks=1)
    assert client.cut(topic, 4) == 4
    assert client.consume(topic, 6) == sample_records(6, first=4)
    assert client.cut(topic, 2) == 4
    with refused(client, "OFFSET_OUT_OF_RANGE"):
        client.cut(topic, 11)
    assert client.cut(topic, -1) == 10
    assert client.bounds(topic) == (10, 10)


def test_settings_of_a_topic(client: Client, bootstrap: str) -> None:
    topic = create_topic(bootstrap, retention_ms="1000")
    found = client.settings(topic)
    assert (found["retention.ms"], found["cleanup.policy"]) == ("1000", "delete")
    client.alter(topic, "retention.bytes", "5000")
    wait_for(lambda: client.settings(topic)["retention.bytes"] == "5000", "the setting")
    # aiokafka replaces all settings.
    others = "604800000" if isinstance(client, Aiokafka) else "1000"
    assert client.settings(topic)["retention.ms"] == others
    with refused(client, "INVALID_CONFIG"):
        client.alter(topic, "retention.ms", "soon")


def test_topics_are_created_automatically(database: Database, tmp_path: Path) -> None:
    process = BrokerProcess(database, tmp_path, "--partitions", "2")
    process.init()
    process.start()
    client = Librdkafka(process.bootstrap)
    assert client.produce("automatic", [Record(value=b"v", partition=1)], acks=1) == [0]
    assert client.partitions("automatic") == 2
    assert process.stop() == 0


def test_old_records_are_deleted(broker: BrokerProcess) -> None:
    topic = create_topic(broker.bootstrap, retention_ms="3600000")
    client = Librdkafka(broker.bootstrap)
    now = int(time.time() * 1000)
    ages = (6_000_000, 4_200_000, 0, 5_400_000)
    client.produce(topic, [Record(value=b"%d" % age, timestamp=now - age) for age in ages])
    held = 'SELECT value FROM kafka.records WHERE topic = %s ORDER BY "offset"'
    wait_for(lambda: len(broker.database.query(held, topic)) == 2, "the oldest to be deleted")
    # An old record after a younger one stays, as in Kafka: a partition is trimmed at its start.
    assert broker.database.query(held, topic) == [(b"0",), (b"5400000",)]
    assert [record.offset for record in client.consume(topic, 2)] == [2, 3]


def test_partitions_over_their_size_are_trimmed(broker: BrokerProcess) -> None:
    topic = create_topic(broker.bootstrap, retention_bytes="5000", retention_ms="-1")
    client = Librdkafka(broker.bootstrap)
    client.produce(topic, [Record(value=b"x" * 1000) for _ in range(12)])
    held = "SELECT count(*) FROM kafka.records WHERE topic = %s"
    wait_for(lambda: broker.database.query(held, topic) == [(5,)], "the oldest to be deleted")
    assert [record.offset for record in client.consume(topic, 5)] == [7, 8, 9, 10, 11]


def test_log_append_time(bootstrap: str) -> None:
    topic = create_topic(bootstrap, message_timestamp_type="LogAppendTime")
    client = Librdkafka(bootstrap)
    client.produce(topic, [Record(value=b"v", timestamp=1)])
    (found,) = client.consume(topic, 1)
    assert found.timestamp > 1_700_000_000_000
