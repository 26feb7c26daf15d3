"""Verification finds every difference, and no others; cutover moves consumer groups."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, TopicPartition

from tailrace.errors import TailraceError
from tailrace.position import ORIGIN
from tailrace.shadow.verify import commit
from tests.integration.shadow.bench import deliver
from tests.waiting import LONG_S, holds

if TYPE_CHECKING:
    from tests.integration.shadow.bench import Bench


@pytest.fixture
def copied(bench: Bench) -> Bench:
    """Thirty records in three transactions."""
    bench.create_topic()
    bench.produce(30)
    sink = bench.sink()
    for first in (0, 10, 20):
        deliver(sink, bench.stream(first, first + 10))
    sink.close()
    return bench


def test_a_different_record_is_found(copied: Bench) -> None:
    copied.database.query(
        "UPDATE kafka.messages SET value = 'other' WHERE \"offset\" = 17 RETURNING 1"
    )
    compared = copied.verify()
    assert not compared.safe
    assert compared.partitions[0].difference == "offset 17 differs"
    assert compared.partitions[0].checksum != compared.partitions[0].kafka_checksum


@pytest.mark.parametrize(
    "change",
    [
        "key = NULL",
        'headers = \'[["a", "b"]]\'',
        '"timestamp" = "timestamp" + interval \'1 ms\'',
    ],
)
def test_every_field_of_a_record_is_compared(copied: Bench, change: str) -> None:
    copied.database.query(f'UPDATE kafka.messages SET {change} WHERE "offset" = 3 RETURNING 1')
    assert copied.verify().partitions[0].difference == "offset 3 differs"


def test_timestamps_of_the_copy_itself_are_not_compared(bench: Bench) -> None:
    """In a topic with LogAppendTime, Kafka sets the time at which it stores a record."""
    bench.create_topic(config={"message.timestamp.type": "LogAppendTime"})
    bench.produce(5)
    sink = bench.sink()
    deliver(sink, bench.stream())
    sink.close()
    assert bench.verify().safe
    bench.database.query(
        "UPDATE kafka.messages SET value = 'other' WHERE \"offset\" = 3 RETURNING 1"
    )
    assert bench.verify().partitions[0].difference == "offset 3 differs"


def test_a_record_missing_in_postgresql_is_found(copied: Bench) -> None:
    copied.database.query('DELETE FROM kafka.messages WHERE "offset" = 5 RETURNING 1')
    assert copied.verify().partitions[0].difference == "offset 5 is missing in PostgreSQL"


def test_records_that_are_not_copied_yet_are_lag(copied: Bench) -> None:
    copied.produce(4)
    compared = copied.verify()
    assert (compared.safe, compared.partitions[0].lag) == (False, 4)
    assert compared.partitions[0].difference == ""


def test_a_topic_without_a_copy_is_lag(bench: Bench) -> None:
    bench.create_topic()
    bench.produce(4)
    compared = bench.verify()
    assert (compared.safe, compared.partitions[0].lag) == (False, 4)


def test_records_deleted_by_kafka_are_not_differences(copied: Bench) -> None:
    admin = copied.admin()
    # In Kafka the marker of its transaction follows the tenth record.
    asked = admin.delete_records([TopicPartition(copied.topic, 0, 15)])
    for future in asked.values():
        future.result(LONG_S)
    compared = copied.verify()
    assert compared.safe
    assert compared.partitions[0].compared == len(copied.kafka_records()) < 30


@pytest.mark.parametrize("offset", [0, 1, 9, 10, 11, 20, 29, 30])
def test_a_group_resumes_in_kafka(copied: Bench, offset: int) -> None:
    copied.database.query(
        'INSERT INTO kafka.consumer_offsets (group_id, topic_id, partition_id, "offset") '
        f"SELECT '{copied.topic}', id, 0, {offset} FROM kafka.topics RETURNING 1"
    )
    compared = copied.verify()
    commit(copied.settings(), compared.groups, name=copied.name)
    copied.produce(2)
    deliver(copied.sink(), copied.stream(30))
    consumer = Consumer(
        {
            "bootstrap.servers": copied.bootstrap,
            "group.id": copied.topic,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )
    consumer.subscribe([copied.topic])
    wanted = [value for _, _, value, _ in copied.broker_records()[offset:]]
    found: list[object] = []
    try:
        while len(found) < len(wanted):
            for message in consumer.consume(100, 0.2):
                assert message.error() is None, message.error()
                found.append(message.value())
    finally:
        consumer.close()
    assert found == wanted


def test_a_group_that_is_active_in_kafka_is_refused(copied: Bench) -> None:
    copied.database.query(
        'INSERT INTO kafka.consumer_offsets (group_id, topic_id, partition_id, "offset") '
        f"SELECT '{copied.topic}', id, 0, 3 FROM kafka.topics RETURNING 1"
    )
    consumer = Consumer(
        {
            "bootstrap.servers": copied.bootstrap,
            "group.id": copied.topic,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    consumer.subscribe([copied.topic])
    try:
        assert consumer.poll(LONG_S) is not None
        with pytest.raises(TailraceError, match=f"group {copied.topic}"):
            commit(copied.settings(), copied.verify().groups, name=copied.name)
    finally:
        consumer.close()


def test_verify_waits_for_the_copy_of_a_restored_database(copied: Bench) -> None:
    """GIVEN a restored database, whose topic was deleted in Kafka and created again WHEN a
    verification waits THEN it does not take the copy of before for the new one."""
    copied.database.query('DELETE FROM kafka.messages WHERE "offset" >= 20 RETURNING 1')
    copied.database.query("UPDATE kafka.partitions SET next_offset = 20 RETURNING 1")
    copied.delete_copy()
    sink = copied.sink()
    sink.open(ORIGIN)
    sink.write(copied.stream(0, 2))
    assert copied.topic in copied.admin().list_topics(timeout=LONG_S).topics
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(copied.verify, wait_s=LONG_S)
        holds(lambda: not waiting.done(), 2, "waiting")
        sink.write(copied.stream(2))
        sink.flush()
        assert waiting.result().safe
