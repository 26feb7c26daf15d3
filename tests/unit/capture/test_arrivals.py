"""What capture measures of transactions that have become durable."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tailrace.capture.arrivals import Arrivals
from tailrace.log import durable_times
from tailrace.position import Lsn
from tailrace.wire.pgtime import PgTime
from tests.unit.capture.test_assemble import INSERT, assembler, loose, take, transaction

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.capture.assemble import Assembler


def committed_us(lsn: int) -> int:
    """When a transaction of `test_assemble` was committed, by PostgreSQL's epoch."""
    return round(PgTime(lsn * 10).to_datetime().timestamp() * 1_000_000)


def durable(arrivals: Arrivals, parts: Assembler, *messages: bytes) -> None:
    """These messages are submitted and durable."""
    entries, covered = take(parts, messages)
    assert covered == len(messages)
    arrivals.submitted(parts.pop_commit_times())
    for entry in entries:
        arrivals.note(entry)


def test_every_transaction_counts_from_its_own_commit() -> None:
    lsns = [110, 130, 150]
    several = [each for lsn in lsns for each in transaction(lsn, INSERT)]
    arrivals = Arrivals(now_us=lambda: committed_us(150) + 1000)
    durable(arrivals, assembler(), *several, loose(170))
    found = arrivals.latencies()
    assert found.count == 3
    expected = sum(committed_us(150) + 1000 - committed_us(lsn) for lsn in lsns)
    assert round(found.seconds * 1e6) == expected


def test_every_entry_is_durable_at_its_own_time(tmp_path: Path) -> None:
    """GIVEN a submission of a fragment's end and of other transactions."""
    parts, times = assembler(spill_bytes=100), iter([1000, 3000, 7000])
    begin, *changes, commit = transaction(110, *[INSERT] * 6)
    arrivals = Arrivals(now_us=lambda: committed_us(130) + next(times))
    arrivals.open(tmp_path, Lsn(100))
    durable(arrivals, parts, begin, *changes)
    durable(arrivals, parts, commit, *transaction(120, INSERT), *transaction(130, INSERT))
    arrivals.close()
    waited = committed_us(130) - committed_us(110), committed_us(130) - committed_us(120), 0
    assert round(arrivals.latencies().seconds * 1e6) == sum(waited) + 3000 + 2 * 7000
    notes = durable_times.read(tmp_path)
    assert notes is not None
    assert notes.lsns.tolist() == [110, 130]
    assert np.diff(notes.times_us).tolist() == [4000]


def test_transactions_that_the_log_holds_do_not_count() -> None:
    """GIVEN a new session WHEN PostgreSQL sends again what is in the log."""
    parts = assembler()
    arrivals = Arrivals()
    durable(arrivals, parts, *transaction(90, INSERT), *transaction(110, INSERT))
    assert arrivals.latencies().count == 1
    assert arrivals.latencies().count == 0


def test_a_large_transaction_counts_once() -> None:
    """GIVEN a transaction of several fragments THEN it counts when the last one is durable."""
    parts = assembler(spill_bytes=100)
    begin, *changes, commit = transaction(110, *[INSERT] * 6)
    arrivals = Arrivals(now_us=lambda: committed_us(110) + 7000)
    durable(arrivals, parts, begin, *changes[:4])
    assert arrivals.latencies().count == 0
    durable(arrivals, parts, *changes[4:], commit)
    found = arrivals.latencies()
    assert (found.count, round(found.seconds, 6)) == (1, 0.007)
    assert arrivals.latencies().count == 0


def test_positions_are_noted_in_the_file_of_the_log(tmp_path: Path) -> None:
    times = iter([50, 60])
    arrivals, parts = Arrivals(now_us=lambda: next(times)), assembler()
    arrivals.open(tmp_path, Lsn(100))
    durable(arrivals, parts, *transaction(110, INSERT))
    durable(arrivals, parts, *transaction(130, INSERT))
    arrivals.close()
    notes = durable_times.read(tmp_path)
    assert notes is not None
    assert (notes.lsns.tolist(), notes.times_us.tolist()) == ([110, 130], [50, 60])
    assert durable_times.waits_us(notes, np.array([110], np.uint64), 90).tolist() == [40]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """GIVEN no file THEN latencies are measured all the same."""
    arrivals = Arrivals()
    arrivals.open(tmp_path / "missing", Lsn(100))
    durable(arrivals, assembler(), *transaction(110, INSERT))
    assert arrivals.latencies().count == 1


def test_a_server_whose_clock_is_ahead() -> None:
    arrivals = Arrivals(now_us=lambda: committed_us(110) - 1)
    durable(arrivals, assembler(), *transaction(110, INSERT))
    assert arrivals.latencies().seconds == 0
