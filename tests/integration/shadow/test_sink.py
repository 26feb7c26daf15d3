"""The sink of the shadow on real servers: the same records, each once, in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from tailrace.errors import SinkError, SinkRefusedError
from tailrace.position import ORIGIN
from tailrace.snapshot.copy import lines
from tests.integration.shadow.bench import asking, delivered

if TYPE_CHECKING:
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


def test_records_are_the_same_over_there(bench: Bench) -> None:
    bench.make(partitions=3)
    bench.database.query(ODD.format(bench.topic))
    bench.produce(50, partition=2)
    receipt = delivered(bench.sink(), bench.stream())
    assert receipt.messages == 55
    for partition in range(3):
        assert bench.there(partition) == bench.here(partition)
    compared = bench.verify()
    assert compared.safe
    assert sum(each.compared for each in compared.partitions) == 55


def test_what_comes_again_is_not_written_again(bench: Bench) -> None:
    bench.make()
    bench.produce(20)
    sink = bench.sink()
    delivered(sink, bench.stream(0, 12))
    again = delivered(sink, bench.stream(5))
    assert (again.messages, again.duplicates) == (8, 7)
    other = delivered(bench.sink(), bench.stream())
    assert (other.messages, other.duplicates) == (0, 20)
    assert bench.there() == bench.here()


def test_what_was_not_committed_comes_again(bench: Bench) -> None:
    bench.make()
    bench.produce(20)
    left = bench.sink()
    left.open(ORIGIN)
    left.write(bench.stream(0, 15))
    # Never flushed: as if its worker had been killed.
    receipt = delivered(bench.sink(), bench.stream())
    assert receipt.messages == 20
    assert bench.there() == bench.here()
    with pytest.raises(SinkError):
        left.flush()
    assert bench.there() == bench.here()
    assert bench.verify().safe


def test_a_sink_that_lost_its_place_reads_it_back(bench: Bench) -> None:
    bench.make()
    bench.produce(30)
    first, second = bench.sink(), bench.sink()
    delivered(first, bench.stream(0, 10))
    delivered(second, bench.stream(0, 20))
    receipt = delivered(first, bench.stream(10))
    assert receipt.messages == 10
    assert bench.there() == bench.here()


def test_older_records_come_from_the_table(bench: Bench) -> None:
    bench.make(partitions=2)
    bench.produce(40, partition=0)
    bench.produce(10, partition=1)
    sink = bench.sink()
    receipt = delivered(sink, bench.stream(35))
    assert receipt.messages == 40
    assert bench.there(0) == bench.here(0)
    assert bench.verify().partitions[1].behind == 10
    delivered(sink, asking((topic_id(bench), 0, 40), (topic_id(bench), 1, 10)))
    assert bench.there(0) == bench.here(0)
    assert bench.there(1) == bench.here(1)
    assert bench.verify().safe


def test_old_records_are_committed_at_intervals(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailrace.shadow.sink._COMMIT_ROWS", 10)
    bench.make()
    bench.produce(300)
    defaults = {"max_rows": 25, "max_bytes": 1 << 20}
    monkeypatch.setattr(lines, "__kwdefaults__", defaults)
    sink = bench.sink()
    sink.open(ORIGIN)
    sink.write(asking((topic_id(bench), 0, 300)))
    sink.close()
    there = bench.there()
    assert there
    assert there == bench.here()[: len(there)]
    delivered(bench.sink(), asking((topic_id(bench), 0, 300)))
    assert bench.there() == bench.here()


def test_a_topic_that_is_off_waits(bench: Bench) -> None:
    bench.make()
    bench.produce(10)
    sink = bench.sink()
    delivered(sink, bench.stream(0, 4))
    bench.database.query(
        f"INSERT INTO kafka.shadow (topic_id, enabled) VALUES ({topic_id(bench)}, false)"
        " RETURNING 1"
    )
    delivered(sink, bench.stream(4, 8))
    assert len(bench.there()) == 4
    assert bench.verify().left_out == [bench.topic]
    bench.database.query("UPDATE kafka.shadow SET enabled = true RETURNING 1")
    delivered(sink, bench.stream(8))
    assert bench.there() == bench.here()


def test_a_start_leaves_records_out(bench: Bench) -> None:
    bench.make()
    bench.produce(10)
    bench.database.query(
        f"INSERT INTO kafka.shadow (topic_id, starts) VALUES ({topic_id(bench)}, '{{6}}')"
        " RETURNING 1"
    )
    sink = bench.sink()
    delivered(sink, bench.stream())
    assert bench.there() == bench.here()[6:]
    assert bench.verify().safe
    bench.produce(10)
    bench.database.query("UPDATE kafka.shadow SET starts = '{15}' RETURNING 1")
    delivered(sink, bench.stream(10))
    assert bench.there() == [*bench.here()[6:10], *bench.here()[15:]]
    compared = bench.verify()
    assert compared.safe
    assert compared.partitions[0].compared == 9


def test_records_that_are_gone_here_stay_there(bench: Bench) -> None:
    bench.make()
    bench.produce(10)
    before = bench.here()
    sink = bench.sink()
    delivered(sink, bench.stream())
    bench.database.query('DELETE FROM kafka.messages WHERE "offset" < 7 RETURNING 1')
    bench.database.query("UPDATE kafka.partitions SET log_start = 7 RETURNING 1")
    bench.produce(5)
    delivered(sink, bench.stream(10))
    assert bench.there() == before + bench.here()[3:]
    compared = bench.verify()
    assert compared.safe
    assert compared.partitions[0].compared == 8


def test_records_of_others_are_not_mixed(bench: Bench) -> None:
    bench.make()
    bench.produce(5)
    bench.make_there()
    other = Producer({"bootstrap.servers": bench.bootstrap})
    other.produce(bench.topic, b"not ours")
    assert other.flush(30) == 0
    sink = bench.sink()
    with pytest.raises(SinkRefusedError, match="not of this shadow"):
        delivered(sink, bench.stream())
    bench.database.query(
        f"INSERT INTO kafka.shadow (topic_id, append) VALUES ({topic_id(bench)}, true) RETURNING 1"
    )
    delivered(sink, bench.stream())
    assert bench.there()[1:] == bench.here()
    assert bench.verify().safe


def test_partitions_are_as_many(bench: Bench) -> None:
    bench.make(partitions=2)
    bench.make_there(partitions=3)
    bench.produce(5)
    with pytest.raises(SinkRefusedError, match="3 partitions in Kafka and 2 here"):
        delivered(bench.sink(), bench.stream())


def test_partitions_grow_with_the_topic(bench: Bench) -> None:
    bench.make()
    bench.produce(3)
    sink = bench.sink()
    delivered(sink, bench.stream())
    bench.database.query(
        f"WITH grown AS (UPDATE kafka.topics SET partitions = 2 WHERE id = {topic_id(bench)}) "
        f"INSERT INTO kafka.partitions VALUES ({topic_id(bench)}, 1) RETURNING 1"
    )
    bench.produce(4, partition=1)
    delivered(sink, bench.stream())
    assert bench.there(1) == bench.here(1)
    assert bench.verify().safe


def test_a_database_that_was_set_back_is_refused(bench: Bench) -> None:
    bench.make()
    bench.produce(10)
    delivered(bench.sink(), bench.stream())
    bench.database.query('DELETE FROM kafka.messages WHERE "offset" >= 6 RETURNING 1')
    bench.database.query("UPDATE kafka.partitions SET next_offset = 6 RETURNING 1")
    with pytest.raises(SinkRefusedError, match="set back"):
        bench.sink().open(ORIGIN)
    # It has grown again, with others.
    bench.produce(20)
    with pytest.raises(SinkRefusedError, match="set back"):
        bench.sink().open(ORIGIN)
    # The way out that the error names.
    bench.database.query(
        f"INSERT INTO kafka.shadow (topic_id, enabled) VALUES ({topic_id(bench)}, false)"
        " RETURNING 1"
    )
    bench.sink().open(ORIGIN)


def test_a_topic_made_anew_is_another(bench: Bench) -> None:
    bench.make()
    bench.produce(10)
    delivered(bench.sink(), bench.stream())
    bench.database.query(
        f"WITH gone AS (DELETE FROM kafka.messages) DELETE FROM kafka.topics "
        f"WHERE name = '{bench.topic}' RETURNING 1"
    )
    bench.make()
    bench.produce(3)
    with pytest.raises(SinkRefusedError, match="not of this shadow"):
        delivered(bench.sink(), bench.stream())
