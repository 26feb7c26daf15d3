"""Exactly once: PostgreSQL commits a batch together with its position, whichever process dies."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import DivergedError, SinkFencedError, SinkRefusedError
from tailrace.position import ORIGIN
from tailrace.sinks.contract import Receipt
from tests.integration.postgres.bench import batch, delivered, numbered
from tests.unit.sinks.rows import position
from tests.waiting import wait_for

if TYPE_CHECKING:
    from tests.integration.postgres.bench import Bench


def test_messages_are_not_visible_before_the_flush(bench: Bench) -> None:
    with bench.opened() as sink:
        sink.write(batch(range(100)))
        assert bench.ids() == []
        assert sink.flush().messages == 100
        assert bench.ids() == numbered(range(100))


def test_committed_messages_are_skipped_with_any_older_checkpoint(bench: Bench) -> None:
    with bench.opened() as sink:
        delivered(sink, batch(range(100)))
    for after in (ORIGIN, position(40), position(99)):
        with bench.opened(after) as sink:
            assert delivered(sink, batch(range(50, 100))) == Receipt(duplicates=50)
    with bench.opened(position(40)) as sink:
        receipt = delivered(sink, batch(range(41, 150)))
        assert (receipt.messages, receipt.duplicates) == (50, 59)
    assert bench.ids() == numbered(range(150))


def test_a_message_that_is_held_is_not_inspected_again(bench: Bench) -> None:
    with bench.opened() as sink:
        delivered(sink, batch(range(10)))
    with bench.opened(max_message_bytes=1) as sink:
        assert sorted(sink.inspect(batch(range(12)))) == [10, 11]


def test_a_process_that_dies_between_write_and_flush(bench: Bench) -> None:
    """GIVEN a process that dies WHEN its batch is replayed THEN nothing is lost or doubled."""
    command = [sys.executable, "-m", "tests.integration.postgres.dying", bench.database.dsn]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert "flushed 100, written 200\n" in iter(process.stdout.readline, "")
        finally:
            process.send_signal(signal.SIGKILL)
    with bench.opened(position(49)) as sink:
        receipt = delivered(sink, batch(range(50, 250)))
    assert (receipt.messages, receipt.duplicates) == (150, 50)
    assert bench.ids() == numbered(range(250))


def test_a_suspended_process_neither_blocks_its_successor_nor_commits(bench: Bench) -> None:
    """GIVEN a process that is suspended in its transaction, with locks on rows WHEN a successor
    opens THEN the transaction is gone; WHEN the process wakes up THEN it cannot write."""
    with bench.opened() as zombie:
        zombie.write(batch(range(50)))
        with bench.opened() as sink:
            open_transactions = (
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                " AND application_name = 'tailrace p' AND xact_start IS NOT NULL"
            )
            wait_for(lambda: bench.database.query(open_transactions) == [(0,)], "the zombie")
            delivered(sink, batch(range(50)))
        with pytest.raises(SinkFencedError, match="opened by another process"):
            delivered(zombie, batch(range(50, 60)))
    assert bench.ids() == numbered(range(50))


def test_a_commit_is_fenced_even_if_the_connection_lives(bench: Bench) -> None:
    """A successor with another role cannot end the connection."""
    with bench.opened() as zombie:
        zombie.write(batch(range(50)))
        bench.database.execute("UPDATE tailrace.positions SET owner = 'other'")
        with pytest.raises(SinkFencedError):
            zombie.flush()
    assert bench.ids() == []


def test_a_lane_may_move_between_workers(bench: Bench) -> None:
    with bench.opened() as one, bench.opened() as other:
        done = 0
        for sink in (one, other, one, one, other, other, one):
            sink.open(position(done - 1) if done else ORIGIN)
            assert delivered(sink, batch(range(done, done + 20))).messages == 20
            done += 20
    assert bench.ids() == numbered(range(140))


def test_another_history_is_refused_unless_the_pipeline_was_reset(bench: Bench) -> None:
    with bench.opened() as sink:
        delivered(sink, batch(range(10)))
        with pytest.raises(DivergedError) as caught:
            bench.sink(history="two").open(ORIGIN)
        assert "the target database holds the position of lane 0 in the log one" in str(
            caught.value
        )
        assert "tailrace reset" in caught.value.hint
        # The refused sink has not fenced the one that is right.
        assert delivered(sink, batch(range(10, 20))).messages == 10
    with bench.opened(history="one+reset") as sink:
        assert delivered(sink, batch(range(5))).messages == 5
    assert len(bench.ids()) == 25


def test_lanes_have_their_own_positions(bench: Bench) -> None:
    with bench.opened(lane=0, lanes=2) as even, bench.opened(lane=1, lanes=2) as odd:
        rows = batch(range(20))
        delivered(even, rows.take([*range(0, 20, 2)]))
        odd.write(rows.take([*range(1, 20, 2)]))
    with bench.opened(lane=0, lanes=2) as even, bench.opened(lane=1, lanes=2) as odd:
        assert delivered(even, rows.take([*range(0, 20, 2)])) == Receipt(duplicates=10)
        assert delivered(odd, rows.take([*range(1, 20, 2)])).messages == 10
    assert bench.ids() == numbered(range(20))
    with bench.opened(lane=0, lanes=2) as even, pytest.raises(SinkRefusedError, match="other"):
        delivered(even, rows.take([0, 2, 3, 19]))


def test_pipelines_share_the_table_of_positions(bench: Bench) -> None:
    with bench.opened() as sink:
        delivered(sink, batch(range(10)))
    other = type(bench)(bench.database, "other")
    with other.opened() as sink:
        assert delivered(sink, batch(range(10))).messages == 10
    held = bench.database.query("SELECT pipeline, count(*) FROM wal_events GROUP BY 1 ORDER BY 1")
    assert held == [("other", 10), ("p", 10)]


def test_a_refused_flush_commits_nothing_and_the_rest_is_written_again(bench: Bench) -> None:
    """GIVEN a refused message WHEN the caller writes the others again THEN they are committed."""
    with bench.opened() as sink:
        delivered(sink, batch(range(5)))
        rows = batch(range(5, 25), keys=4)
        bench.database.execute("ALTER TABLE wal_events ADD CHECK (id <> 'm10')")
        sink.write(rows.slice(0, 10))
        sink.write(rows.slice(10))
        receipt = sink.flush()
        assert (receipt.messages, receipt.bytes, receipt.duplicates) == (0, 0, 0)
        found = [
            (each.message["id"][0].as_py(), each.outcome.verdict.name) for each in receipt.failures
        ]
        assert found == [
            (b"m10", "REFUSED"),
            (b"m14", "UNSENT"),
            (b"m18", "UNSENT"),
            (b"m22", "UNSENT"),
        ]
        assert "check constraint" in receipt.failures[0].outcome.reason
        assert "m10" in receipt.failures[0].outcome.response
        assert bench.ids() == numbered(range(5))
        rest = [row for row in range(20) if row not in (5, 9, 13, 17)]
        assert delivered(sink, rows.take(rest)).messages == 16
        assert delivered(sink, batch(range(25, 30))).messages == 5
    assert bench.ids() == numbered(n for n in range(30) if n not in (10, 14, 18, 22))
    with bench.opened() as sink:
        assert delivered(sink, batch(range(30))) == Receipt(duplicates=30)
