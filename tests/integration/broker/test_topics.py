"""Topics are made, grown, emptied and unmade by the clients' own tools."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
)
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewPartitions, NewTopic

from tests.integration.broker.clients import Librdkafka, Record
from tests.integration.broker.test_conformance import make_topic, some
from tests.waiting import wait_for

if TYPE_CHECKING:
    from tests.fix_broker import BrokerProcess


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        (NewTopic("bad name", 1, 1), "TOPIC_EXCEPTION"),
        (NewTopic("x" * 250, 1, 1), "TOPIC_EXCEPTION"),
        (NewTopic("fine", 0, 1), "INVALID_PARTITIONS"),
        (NewTopic("fine", 1, 3), "INVALID_REPLICATION_FACTOR"),
        (NewTopic("fine", 1, 1, config={"retention.ms": "soon"}), "INVALID_CONFIG"),
        (NewTopic("fine", 1, 1, config={"no.such.setting": "1"}), "INVALID_CONFIG"),
    ],
)
def test_what_is_no_topic(admin: AdminClient, topic: NewTopic, error: str) -> None:
    with pytest.raises(KafkaException, match=error):
        admin.create_topics([topic])[topic.topic].result(30)


def test_a_topic_is_made_once(admin: AdminClient, bootstrap: str) -> None:
    topic = make_topic(bootstrap)
    with pytest.raises(KafkaException, match="TOPIC_ALREADY_EXISTS"):
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)


def test_a_topic_grows(admin: AdminClient, bootstrap: str) -> None:
    topic = make_topic(bootstrap)
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(30)
    assert len(admin.list_topics(topic, 30).topics[topic].partitions) == 3
    with pytest.raises(KafkaException, match="INVALID_PARTITIONS"):
        admin.create_partitions([NewPartitions(topic, 2)])[topic].result(30)
    Librdkafka(bootstrap).produce(topic, [Record(value=b"1", partition=2)])


def test_a_topic_goes_with_all_it_has(broker: BrokerProcess) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    topic = make_topic(broker.bootstrap)
    client = Librdkafka(broker.bootstrap)
    client.produce(topic, some(10))
    client.consume(topic, 10, group=f"g-{topic}")
    admin.delete_topics([topic])[topic].result(30)
    held = "SELECT count(*) FROM kafka.records WHERE topic = %s"
    assert broker.database.query(held, topic) == [(0,)]
    again = NewTopic(topic, 1, 1, config={"retention.ms": "-1"})
    admin.create_topics([again])[topic].result(30)
    fresh = [Record(value=b"fresh")]
    assert Librdkafka(broker.bootstrap).produce(topic, fresh) == [0]
    assert Librdkafka(broker.bootstrap).consume(topic, 1, group=f"g-{topic}") == fresh


def test_records_before_an_offset_go(admin: AdminClient, bootstrap: str) -> None:
    topic = make_topic(bootstrap)
    client = Librdkafka(bootstrap)
    client.produce(topic, some(10))
    at = TopicPartition(topic, 0, 4)
    assert admin.delete_records([at])[at].result(30).low_watermark == 4
    assert client.consume(topic, 6) == some(6, first=4)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), 30) == (4, 10)
    consumer.close()


def test_settings_of_a_topic(admin: AdminClient, bootstrap: str) -> None:
    topic = make_topic(bootstrap, retention_ms="1000")
    resource = ConfigResource(ResourceType.TOPIC, topic)
    found = admin.describe_configs([resource])[resource].result(30)
    assert found["retention.ms"].value == "1000"
    assert found["cleanup.policy"].value == "delete"
    change = ConfigEntry("retention.bytes", "5000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
    admin.incremental_alter_configs([resource])[resource].result(30)
    resource = ConfigResource(ResourceType.TOPIC, topic)
    found = admin.describe_configs([resource])[resource].result(30)
    assert (found["retention.ms"].value, found["retention.bytes"].value) == ("1000", "5000")


def test_old_records_go(broker: BrokerProcess) -> None:
    topic = make_topic(broker.bootstrap, retention_ms="60000")
    client = Librdkafka(broker.bootstrap)
    now = int(time.time() * 1000)
    ages = (100_000, 70_000, 0, 90_000)
    client.produce(topic, [Record(value=b"%d" % age, timestamp=now - age) for age in ages])
    held = 'SELECT value FROM kafka.records WHERE topic = %s ORDER BY "offset"'
    wait_for(lambda: len(broker.database.query(held, topic)) == 2, "the oldest to go")
    # What is behind a younger one stays, as in Kafka: a partition is cut at its beginning.
    assert broker.database.query(held, topic) == [(b"0",), (b"90000",)]
    assert [record.offset for record in client.consume(topic, 2)] == [2, 3]


def test_partitions_that_grow_too_large_are_cut(broker: BrokerProcess) -> None:
    topic = make_topic(broker.bootstrap, retention_bytes="5000", retention_ms="-1")
    client = Librdkafka(broker.bootstrap)
    client.produce(topic, [Record(value=b"x" * 1000) for _ in range(12)])
    held = "SELECT count(*) FROM kafka.records WHERE topic = %s"
    wait_for(lambda: broker.database.query(held, topic) == [(5,)], "the oldest to go")
    assert [record.offset for record in client.consume(topic, 5)] == [7, 8, 9, 10, 11]


def test_the_brokers_clock(bootstrap: str) -> None:
    topic = make_topic(bootstrap, message_timestamp_type="LogAppendTime")
    client = Librdkafka(bootstrap)
    client.produce(topic, [Record(value=b"v", timestamp=1)])
    (found,) = client.consume(topic, 1)
    assert found.timestamp > 1_700_000_000_000
