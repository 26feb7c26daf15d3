"""The shadow's sink on real servers: the same records in Kafka, each once and in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from tailrace.errors import DivergedError, SinkError
from tailrace.position import ORIGIN
from tailrace.snapshot.copy import lines
from tests.integration.shadow.bench import copy_request, deliver
from tests.waiting import LONG_S

if TYPE_CHECKING:
    from tailrace.sinks.contract import Receipt
    from tests.integration.shadow.bench import Bench

ODD = """
SELECT kafka.produce('{0}', NULL::bytea, NULL::bytea),
       kafka.produce('{0}', ''::bytea, ''::bytea, '{{}}'),
       kafka.produce('{0}', '\\x00ff'::bytea, '\\xdeadbeef00'::bytea,
                     '[["a", "1"], ["a", null], ["é", {{"base64": "/wA="}}]]'),
       kafka.produce('{0}', 'old', 'x', "timestamp" => '1970-01-01 00:00:00.001Z'),
       kafka.produce('{0}', 'new', 'y', '{{"h": "v"}}', "timestamp" => '2026-11-15 12:34:56.789Z')
"""


def topic_id(bench: Bench) -> int:
    found = bench.database.query(f"SELECT id FROM kafka.topics WHERE name = '{bench.topic}'")
    return int(found[0][0])


def refusal(receipt: Receipt) -> str:
    """Why the only refused topic is refused."""
    [refused] = receipt.refusals
    return refused.reason


def test_records_are_the_same_in_kafka(bench: Bench) -> None:
    bench.create_topic(partitions=3)
    bench.database.query(ODD.format(bench.topic))
    bench.produce(50, partition=2)
    receipt = deliver(bench.sink(), bench.stream())
    assert receipt.messages == 55
    for partition in range(3):
        assert bench.kafka_records(partition) == bench.broker_records(partition)
    compared = bench.verify()
    assert compared.safe
    assert sum(each.compared for each in compared.partitions) == 55


def test_replayed_records_are_written_once(bench: Bench) -> None:
    bench.create_topic()
    bench.produce(20)
    sink = bench.sink()
    deliver(sink, bench.stream(0, 12))
    again = deliver(sink, bench.stream(5))
    assert (again.messages, again.duplicates) == (8, 7)
    other = deliver(bench.sink(), bench.stream())
    assert (other.messages, other.duplicates) == (0, 20)
    assert bench.kafka_records() == bench.broker_records()


def test_uncommitted_records_are_replayed(bench: Bench) -> None:
    bench.create_topic()
    bench.produce(20)
    left = bench.sink()
    left.open(ORIGIN)
    left.write(bench.stream(0, 15))
    # Not flushed, as if its worker had been killed.
    receipt = deliver(bench.sink(), bench.stream())
    assert receipt.messages == 20
    assert bench.kafka_records() == bench.broker_records()
    with pytest.raises(SinkError):
        left.flush()
    assert bench.kafka_records() == bench.broker_records()
    assert bench.verify().safe


def test_a_fenced_sink_reads_its_progress_back(bench: Bench) -> None:
    bench.create_topic()
    bench.produce(30)
    first, second = bench.sink(), bench.sink()
    deliver(first, bench.stream(0, 10))
    deliver(second, bench.stream(0, 20))
    receipt = deliver(first, bench.stream(10))
    assert receipt.messages == 10
    assert bench.kafka_records() == bench.broker_records()


def test_older_records_are_read_from_the_table(bench: Bench) -> None:
    bench.create_topic(partitions=2)
    bench.produce(40, partition=0)
    bench.produce(10, partition=1)
    sink = bench.sink()
    receipt = deliver(sink, bench.stream(35))
    assert receipt.messages == 40
    assert bench.kafka_records(0) == bench.broker_records(0)
    assert bench.verify().partitions[1].lag == 10
    deliver(sink, copy_request((topic_id(bench), 0, 40), (topic_id(bench), 1, 10)))
    assert bench.kafka_records(0) == bench.broker_records(0)
    assert bench.kafka_records(1) == bench.broker_records(1)
    assert bench.verify().safe


def test_old_records_are_committed_at_intervals(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailrace.shadow.sink._COMMIT_ROWS", 10)
    bench.create_topic()
    bench.produce(300)
    defaults = {"max_rows": 25, "max_bytes": 1 << 20}
    monkeypatch.setattr(lines, "__kwdefaults__", defaults)
    sink = bench.sink()
    sink.open(ORIGIN)
    sink.write(copy_request((topic_id(bench), 0, 300)))
    sink.close()
    there = bench.kafka_records()
    assert there
    assert there == bench.broker_records()[: len(there)]
    deliver(bench.sink(), copy_request((topic_id(bench), 0, 300)))
    assert bench.kafka_records() == bench.broker_records()


def test_a_disabled_topic_is_not_copied(bench: Bench) -> None:
    bench.create_topic()
    bench.produce(10)
    sink = bench.sink()
    deliver(sink, bench.stream(0, 4))
    bench.database.query(
        f"INSERT INTO kafka.shadow (topic_id, enabled) VALUES ({topic_id(bench)}, false)"
        " RETURNING 1"
    )
    deliver(sink, bench.stream(4, 8))
    assert len(bench.kafka_records()) == 4
    assert bench.verify().not_copied == [bench.topic]
    bench.database.query("UPDATE kafka.shadow SET enabled = true RETURNING 1")
    deliver(sink, bench.stream(8))
    assert bench.kafka_records() == bench.broker_records()


def test_records_before_the_start_are_not_copied(bench: Bench) -> None:
    bench.create_topic()
    bench.produce(10)
    bench.database.query(
        f"INSERT INTO kafka.shadow (topic_id, starts) VALUES ({topic_id(bench)}, '{{6}}')"
        " RETURNING 1"
    )
    sink = bench.sink()
    deliver(sink, bench.stream())
    assert bench.kafka_records() == bench.broker_records()[6:]
    assert bench.verify().safe
    bench.produce(10)
    bench.database.query("UPDATE kafka.shadow SET starts = '{15}' RETURNING 1")
    deliver(sink, bench.stream(10))
    assert bench.kafka_records() == [*bench.broker_records()[6:10], *bench.broker_records()[15:]]
    compared = bench.verify()
    assert compared.safe
    assert compared.partitions[0].compared == 9


def test_records_deleted_by_the_broker_stay_in_kafka(bench: Bench) -> None:
    bench.create_topic()
    bench.produce(10)
    before = bench.broker_records()
    sink = bench.sink()
    deliver(sink, bench.stream())
    bench.database.query('DELETE FROM kafka.messages WHERE "offset" < 7 RETURNING 1')
    bench.database.query("UPDATE kafka.partitions SET log_start = 7 RETURNING 1")
    bench.produce(5)
    deliver(sink, bench.stream(10))
    assert bench.kafka_records() == before + bench.broker_records()[3:]
    compared = bench.verify()
    assert compared.safe
    assert compared.partitions[0].compared == 8


def test_a_topic_with_foreign_records_is_refused(bench: Bench) -> None:
    bench.create_topic()
    bench.produce(5)
    bench.create_kafka_topic()
    other = Producer({"bootstrap.servers": bench.bootstrap})
    other.produce(bench.topic, b"foreign")
    assert other.flush(LONG_S) == 0
    sink = bench.sink()
    assert "this shadow did not copy" in refusal(deliver(sink, bench.stream()))
    bench.database.query(
        f"INSERT INTO kafka.shadow (topic_id, append) VALUES ({topic_id(bench)}, true) RETURNING 1"
    )
    deliver(sink, copy_request((topic_id(bench), 0, 5)))
    assert bench.kafka_records()[1:] == bench.broker_records()
    assert bench.verify().safe


def test_a_topic_with_more_partitions_in_kafka_is_refused(bench: Bench) -> None:
    bench.create_topic(partitions=2)
    bench.create_kafka_topic(partitions=3)
    bench.produce(5)
    receipt = deliver(bench.sink(), bench.stream())
    assert "3 partitions in Kafka and 2 in the broker" in refusal(receipt)


def test_partitions_are_added_with_the_topic(bench: Bench) -> None:
    bench.create_topic()
    bench.produce(3)
    sink = bench.sink()
    deliver(sink, bench.stream())
    bench.database.query(
        f"WITH grown AS (UPDATE kafka.topics SET partitions = 2 WHERE id = {topic_id(bench)}) "
        f"INSERT INTO kafka.partitions VALUES ({topic_id(bench)}, 1) RETURNING 1"
    )
    bench.produce(4, partition=1)
    deliver(sink, bench.stream())
    assert bench.kafka_records(1) == bench.broker_records(1)
    assert bench.verify().safe


def test_a_database_restored_to_an_earlier_time_is_refused(bench: Bench) -> None:
    bench.create_topic()
    bench.produce(10)
    deliver(bench.sink(), bench.stream())
    bench.database.query('DELETE FROM kafka.messages WHERE "offset" >= 6 RETURNING 1')
    bench.database.query("UPDATE kafka.partitions SET next_offset = 6 RETURNING 1")
    with pytest.raises(DivergedError, match="restored to an earlier time"):
        bench.sink().open(ORIGIN)
    # The partition is longer again, with other records.
    bench.produce(20)
    with pytest.raises(DivergedError, match="restored to an earlier time"):
        bench.sink().open(ORIGIN)
    # The second fix that the hint names.
    bench.database.query(
        f"INSERT INTO kafka.shadow (topic_id, enabled) VALUES ({topic_id(bench)}, false)"
        " RETURNING 1"
    )
    bench.sink().open(ORIGIN)


def test_a_topic_that_agrees_and_was_deleted_is_copied_again(bench: Bench) -> None:
    """GIVEN a restore that did not change a topic WHEN all topics are deleted in Kafka THEN it is
    complete, although its copy agreed."""
    bench.create_topic(2)
    bench.produce(10)
    bench.produce(5, partition=1)
    deliver(bench.sink(), bench.stream())
    bench.delete_copy()
    bench.produce(2)
    deliver(bench.sink(), copy_request((topic_id(bench), 0, 12), (topic_id(bench), 1, 5)))
    for partition in (0, 1):
        assert bench.kafka_records(partition) == bench.broker_records(partition)
    assert bench.verify().safe


def test_a_topic_that_was_deleted_after_a_restore_is_copied_again(bench: Bench) -> None:
    """GIVEN a copy that is ahead of a restored database WHEN its topic is deleted in Kafka THEN
    it is copied from its first record, in all partitions, also after a crash in between."""
    bench.create_topic(2)
    bench.produce(10)
    bench.produce(5, partition=1)
    deliver(bench.sink(), bench.stream())
    bench.database.query(
        'DELETE FROM kafka.messages WHERE partition_id = 0 AND "offset" >= 6 RETURNING 1'
    )
    bench.database.query(
        "UPDATE kafka.partitions SET next_offset = 6 WHERE partition_id = 0 RETURNING 1"
    )
    with pytest.raises(DivergedError):
        bench.sink().open(ORIGIN)
    bench.delete_copy()
    # The first attempt creates the topic and ends before it commits.
    attempt = bench.sink()
    attempt.open(ORIGIN)
    attempt.write(bench.stream(0, 2))
    attempt.close()
    deliver(bench.sink(), bench.stream())
    for partition in (0, 1):
        assert bench.kafka_records(partition) == bench.broker_records(partition)
    assert bench.verify().safe


def test_a_recreated_topic_is_another_topic(bench: Bench) -> None:
    bench.create_topic()
    bench.produce(10)
    deliver(bench.sink(), bench.stream())
    bench.database.query(
        f"WITH gone AS (DELETE FROM kafka.messages) DELETE FROM kafka.topics "
        f"WHERE name = '{bench.topic}' RETURNING 1"
    )
    bench.create_topic()
    bench.produce(3)
    assert "this shadow did not copy" in refusal(deliver(bench.sink(), bench.stream()))
