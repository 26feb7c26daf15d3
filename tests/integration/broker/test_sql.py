"""Topics from SQL: in the application's transaction, and no consumer skips a record."""

from __future__ import annotations

import threading
import uuid
from typing import TYPE_CHECKING

import pytest
from kafka.partitioner.default import murmur2
from psycopg.errors import RaiseException

from tests.fix_broker import BrokerProcess
from tests.integration.broker.clients import Librdkafka, Record
from tests.integration.broker.samples import create_topic, sample_records
from tests.waiting import LONG_S, wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fix_postgres import Database


@pytest.fixture
def client(broker: BrokerProcess) -> Librdkafka:
    return Librdkafka(broker.bootstrap)


def test_a_record_commits_with_its_transaction(broker: BrokerProcess, client: Librdkafka) -> None:
    topic = create_topic(broker.bootstrap)
    with broker.database.connect() as connection:
        produce = "SELECT kafka.produce(%s, 'key', 'value', '{\"h\": \"1\"}')"
        with connection.transaction():
            connection.execute(produce, (topic,))
        with connection.transaction(force_rollback=True):
            connection.execute(produce, (topic,))
        assert connection.execute(produce, (topic,)).fetchone() == (1,)
    found = client.consume(topic, 2)
    assert [(r.key, r.value, r.headers) for r in found] == [(b"key", b"value", (("h", b"1"),))] * 2


def test_an_open_transaction_delays_only_its_partition(
    broker: BrokerProcess, client: Librdkafka
) -> None:
    """GIVEN an application that has written and not committed WHEN others produce THEN no later
    record of its partition is visible before its own, and other partitions are not delayed."""
    topic = create_topic(broker.bootstrap, 2)
    with broker.database.connect() as connection:
        with connection.transaction():
            connection.execute("SELECT kafka.produce(%s, 'a', 'first', partition => 0)", (topic,))
            blocked = [Record(value=b"second", partition=0)]
            thread = threading.Thread(target=client.produce, args=(topic, blocked))
            thread.start()
            other = [Record(value=b"other", partition=1)]
            assert client.produce(topic, other) == [0]
            assert client.consume(topic, 1) == other
        thread.join(LONG_S)
    found = sorted(client.consume(topic, 3), key=lambda record: (record.partition, record.offset))
    assert [(r.partition, r.offset, r.value) for r in found] == [
        (0, 0, b"first"),
        (0, 1, b"second"),
        (1, 0, b"other"),
    ]


def test_a_waiting_consumer_is_woken(broker: BrokerProcess, client: Librdkafka) -> None:
    topic = create_topic(broker.bootstrap)
    found: list[Record] = []
    thread = threading.Thread(target=lambda: found.extend(client.consume(topic, 1)))
    thread.start()
    broker.database.execute("SELECT kafka.produce(%s, NULL::text, 'news')", topic)
    thread.join(LONG_S)
    assert [record.value for record in found] == [b"news"]


def test_sql_and_clients_choose_the_same_partition(broker: BrokerProcess) -> None:
    keys = [b"", b"a", b"ab", b"abc", b"abcd", "né".encode(), bytes(range(256)), b"\xff" * 7]
    rows = broker.database.query("SELECT kafka.murmur2(key) FROM unnest(%s::bytea[]) key", keys)
    assert [row[0] for row in rows] == [murmur2(key) & 0xFFFFFFFF for key in keys]


def test_an_unknown_topic_is_named(broker: BrokerProcess) -> None:
    with pytest.raises(RaiseException, match="topic nowhere does not exist"):
        broker.database.execute("SELECT kafka.produce('nowhere', 'k', 'v')")


def test_unlogged_topics(broker: BrokerProcess, client: Librdkafka) -> None:
    topic = create_topic(broker.bootstrap, tailrace_unlogged="true")
    client.produce(topic, sample_records(10))
    assert client.consume(topic, 10) == sample_records(10)
    (count,) = broker.database.query(
        "SELECT count(*) FROM kafka.unlogged_messages m JOIN kafka.topics t ON t.id = m.topic_id"
        " WHERE t.name = %s",
        topic,
    )[0]
    assert count == 10


def test_topics_created_with_sql_are_known(broker: BrokerProcess, client: Librdkafka) -> None:
    keep = '{"retention.ms": "-1"}'
    broker.database.execute(f"SELECT kafka.create_topic('from-sql', 2, '{keep}')")
    wait_for(lambda: client.produce("from-sql", [Record(value=b"1", partition=1)]) == [0])
    assert client.consume("from-sql", 1) == [Record(value=b"1", partition=1)]


@pytest.mark.parametrize("config", ['{"retention.ms": "7d"}', '{"retention.bytes": -2}', "[]"])
def test_an_invalid_config_is_refused(broker: BrokerProcess, config: str) -> None:
    with pytest.raises(RaiseException, match="must be"):
        broker.database.query("SELECT kafka.create_topic('refused', 1, %s)", config)


def test_a_config_from_sql_may_have_numbers(broker: BrokerProcess, client: Librdkafka) -> None:
    topic = f"numbers-{uuid.uuid4().hex[:8]}"
    broker.database.query("SELECT kafka.create_topic(%s, 1, '{\"retention.ms\": 5000}')", topic)
    assert client.produce(topic, sample_records(1)) == [0]


def test_an_invalid_config_does_not_stop_retention(database: Database, tmp_path: Path) -> None:
    """GIVEN a topic of an older version whose retention is no number THEN others are trimmed."""
    process = BrokerProcess(database, tmp_path, "--retention-check", "0.1")
    process.init()
    database.execute("""
        ALTER TABLE kafka.topics DISABLE TRIGGER check_config;
        SELECT kafka.create_topic('a-invalid', 1, '{"retention.ms": "7d"}');
        SELECT kafka.create_topic('b-short', 1, '{"retention.ms": 1}');
        SELECT kafka.produce('b-short', 'key', 'value')
    """)
    with process.start():
        records = "SELECT count(*) FROM kafka.messages"
        process.wait_until(lambda: database.query(records) == [(0,)], "the record to expire")
        assert "broker.retention_failed" in process.output
        assert process.stop() == 0
