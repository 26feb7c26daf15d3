"""Exactly once: Kafka commits a batch together with its position, whichever process dies."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import (
    DivergedError,
    SinkFencedError,
    SinkRefusedError,
    SinkUnreachableError,
)
from tailrace.position import ORIGIN
from tailrace.sinks.contract import Receipt
from tests.integration.kafka.reading import delivered
from tests.unit.sinks.rows import position, write
from tests.waiting import wait_for

if TYPE_CHECKING:
    from tailrace.sinks.kafka.sink import Kafka
    from tests.integration.kafka.reading import Bench


def test_messages_are_not_visible_before_the_flush(bench: Bench) -> None:
    with bench.opened(transactional=True) as sink:
        write(sink, bench.rows(range(100)))
        wait_for(lambda: len(bench.numbers(committed=False)) == 100, "the messages")
        assert bench.numbers(is_open=True) == []
        sink.flush()
        assert bench.numbers() == list(range(100))


def test_committed_messages_are_skipped_with_any_older_checkpoint(bench: Bench) -> None:
    with bench.opened(transactional=True) as sink:
        write(sink, bench.rows(range(100)))
        sink.flush()
    for after in (ORIGIN, position(40), position(99)):
        with bench.opened(after, transactional=True) as sink:
            write(sink, bench.rows(range(50, 100)))
            assert sink.flush() == Receipt(duplicates=50)
    with bench.opened(position(40), transactional=True) as sink:
        write(sink, bench.rows(range(41, 150)))
        receipt = sink.flush()
        assert (receipt.messages, receipt.duplicates) == (50, 59)
    assert bench.numbers() == list(range(150))


def test_a_sink_that_stays_open_skips_committed_messages(bench: Bench) -> None:
    with bench.opened(transactional=True) as sink:
        write(sink, bench.rows(range(10)))
        sink.flush()
        sink.open(ORIGIN)
        write(sink, bench.rows(range(20)))
        assert sink.flush().messages == 10
    assert bench.numbers() == list(range(20))


def test_aborted_messages_are_never_visible(bench: Bench) -> None:
    with bench.opened(transactional=True) as sink:
        write(sink, bench.rows(range(10)))
        sink.flush()
        write(sink, bench.rows(range(10, 60)))
        wait_for(lambda: len(bench.numbers(committed=False)) == 60, "the messages")
    with bench.opened(position(9), transactional=True) as sink:
        write(sink, bench.rows(range(10, 60)))
        assert sink.flush().messages == 50
    assert bench.numbers() == list(range(60))


def test_a_process_that_dies_between_write_and_flush(bench: Bench) -> None:
    command = [sys.executable, "-m", "tests.integration.kafka.dying", bench.bootstrap, bench.topic]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert "flushed 100, written 200\n" in iter(process.stdout.readline, "")
            wait_for(lambda: len(bench.numbers(committed=False)) == 200, "the messages")
        finally:
            process.send_signal(signal.SIGKILL)
    with bench.opened(position(49), transactional=True) as sink:
        write(sink, bench.rows(range(50, 250)))
        receipt = sink.flush()
    assert (receipt.messages, receipt.duplicates) == (150, 50)
    assert bench.numbers() == list(range(250))


def test_a_zombie_is_fenced(bench: Bench) -> None:
    with bench.opened(transactional=True) as zombie:
        write(zombie, bench.rows(range(50)))
        with bench.opened(transactional=True) as sink:
            write(sink, bench.rows(range(50)))
            sink.flush()
        with pytest.raises(SinkFencedError) as caught:
            delivered(zombie, bench.rows(range(50, 60)))
        assert "runs in another process" in caught.value.hint
    assert bench.numbers() == list(range(50))


def test_a_zombie_that_keeps_writing_is_fenced(bench: Bench) -> None:
    with bench.opened(transactional=True) as zombie:
        write(zombie, bench.rows(range(50)))
        bench.sink(transactional=True).open(ORIGIN)
        with pytest.raises(SinkFencedError):
            write_many(zombie, bench)
    assert bench.numbers() == []


def write_many(sink: Kafka, bench: Bench) -> None:
    for start in range(50, 10_000, 50):
        write(sink, bench.rows(range(start, start + 50)))
    sink.flush()


@pytest.mark.long
def test_an_overdue_transaction_is_not_reported_as_fenced(bench: Bench) -> None:
    with bench.opened(transactional=True, transaction_timeout_s=15) as sink:
        write(sink, bench.rows(range(10)))
        wait_for(lambda: bench.end() == 11, "the abort marker")
        with pytest.raises(
            SinkUnreachableError, match="Kafka aborted the transaction after 15 s"
        ) as caught:
            delivered(sink, bench.rows(range(10, 20)))
        assert "transaction_timeout_s" in caught.value.hint
    with bench.opened(transactional=True) as sink:
        assert delivered(sink, bench.rows(range(20))).messages == 20
    assert bench.numbers() == list(range(20))


def test_a_lane_may_move_between_workers(bench: Bench) -> None:
    with bench.opened(transactional=True) as one, bench.opened(transactional=True) as other:
        done = 0
        for sink in (one, other, one, one, other, other, one):
            sink.open(position(done - 1) if done else ORIGIN)
            write(sink, bench.rows(range(done, done + 20)))
            assert sink.flush().messages == 20
            done += 20
    assert bench.numbers() == list(range(140))


def test_several_flushes_after_one_open(bench: Bench) -> None:
    with bench.opened(transactional=True) as sink:
        for start in range(0, 50, 10):
            write(sink, bench.rows(range(start, start + 10)))
            assert sink.flush().messages == 10
        assert sink.flush() == Receipt()
    with bench.opened(transactional=True) as sink:
        write(sink, bench.rows(range(60)))
        assert sink.flush().duplicates == 50
    assert bench.numbers() == list(range(60))


def test_the_stored_position_is_readable_json(bench: Bench) -> None:
    with bench.opened(transactional=True, prefix="mine", source="7123") as sink:
        write(sink, bench.rows(range(5)))
        sink.flush()
    (found,) = bench.held(f"mine-positions-{bench.topic}")
    record = json.loads(found.value)
    assert record["position"] == str(position(4))
    assert (record["lane"], record["lanes"], record["source"]) == (0, 1, "7123")
    assert record["count"] == 5


def test_a_position_is_found_before_many_aborted_records(bench: Bench) -> None:
    with bench.opened(transactional=True) as sink:
        write(sink, bench.rows(range(10)))
        sink.flush()
    for _ in range(10):
        with bench.opened(transactional=True) as sink:
            for _ in range(3):
                sink.open(ORIGIN)
    with bench.opened(transactional=True) as sink:
        write(sink, bench.rows(range(10)))
        assert sink.flush().duplicates == 10


def test_positions_of_another_history_are_refused_until_a_reset(bench: Bench) -> None:
    with bench.opened(transactional=True, source="old") as sink:
        write(sink, bench.rows(range(100)))
        sink.flush()
    with pytest.raises(DivergedError, match="in the log old, but this log is new"):
        bench.sink(transactional=True, source="new").open(ORIGIN)
    with bench.opened(transactional=True, source="new+1") as sink:
        write(sink, bench.rows(range(10)))
        assert sink.flush() == Receipt(messages=10, bytes=sink_bytes(10))
    with bench.opened(transactional=True, source="new+1") as sink:
        write(sink, bench.rows(range(12)))
        assert sink.flush().duplicates == 10


def sink_bytes(count: int) -> int:
    return sum(len(b"%d\r\nMSG + OK\r\n\x00\xff" % number) for number in range(count))


def test_each_lane_has_its_own_position(bench: Bench) -> None:
    even, odd = range(0, 100, 2), range(1, 100, 2)
    with bench.opened(transactional=True, lane=0, lanes=2) as sink:
        write(sink, bench.rows(even))
        sink.flush()
    for lane, numbers, duplicates in ((0, even, 50), (1, odd, 0)):
        with bench.opened(transactional=True, lane=lane, lanes=2) as sink:
            write(sink, bench.rows(numbers))
            assert sink.flush().duplicates == duplicates
    assert sorted(bench.numbers()) == list(range(100))


def test_an_open_transaction_of_another_lane_hides_nothing(bench: Bench) -> None:
    with bench.opened(transactional=True, lane=1, lanes=2) as other:
        write(other, bench.rows(range(1, 20, 2)))
        with bench.opened(transactional=True, lane=0, lanes=2) as sink:
            write(sink, bench.rows(range(0, 20, 2)))
            sink.flush()
        with bench.opened(transactional=True, lane=0, lanes=2) as sink:
            write(sink, bench.rows(range(0, 20, 2)))
            assert sink.flush().duplicates == 10
        other.flush()
    assert sorted(bench.numbers()) == list(range(20))


def test_a_replay_with_other_messages_in_a_lane_is_refused(bench: Bench) -> None:
    with bench.opened(transactional=True, lane=0, lanes=2) as sink:
        write(sink, bench.rows(range(0, 50, 2)))
        sink.flush()
    with (
        bench.opened(transactional=True, lane=0, lanes=2) as sink,
        pytest.raises(SinkRefusedError, match="the replayed batch has other messages"),
    ):
        delivered(sink, bench.rows(range(60)))


def test_the_number_of_lanes_may_change_only_between_batches(bench: Bench) -> None:
    with bench.opened(transactional=True, lane=2, lanes=3) as sink:
        write(sink, bench.rows(range(2, 30, 3)))
        sink.flush()
    with pytest.raises(SinkRefusedError, match="lane 2 of 3") as caught:
        bench.sink(transactional=True).open(ORIGIN)
    assert "lanes: 3" in caught.value.hint
    with bench.opened(position(29), transactional=True, lane=4, lanes=5) as sink:
        write(sink, bench.rows(range(30, 40)))
        assert sink.flush().messages == 10


def test_a_positions_topic_without_compaction_is_refused(bench: Bench) -> None:
    positions = type(bench)(bench.bootstrap, f"tailrace-positions-{bench.topic}")
    positions.make()
    with pytest.raises(SinkRefusedError, match=r"cleanup\.policy"):
        bench.sink(transactional=True).open(ORIGIN)
