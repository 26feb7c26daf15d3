"""What capture measures of transactions that have become durable."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tailrace.capture.arrivals import Arrivals, commit_times_us
from tailrace.log import durable_times
from tailrace.position import Lsn
from tailrace.wire.pgtime import PgTime
from tests.unit.capture.test_assemble import INSERT, assembler, loose, take, transaction

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.log.format.entry import Entry


def committed_us(lsn: int) -> int:
    """When a transaction of `test_assemble` was committed, by PostgreSQL's epoch."""
    return round(PgTime(lsn * 10).to_datetime().timestamp() * 1_000_000)


def entry(*messages: bytes) -> Entry:
    [found], _ = take(assembler(), messages)
    return found


def test_the_commit_times_of_an_entry() -> None:
    lsns = [110, 130, 150]
    several = entry(*(each for lsn in lsns for each in transaction(lsn, INSERT)), loose(170))
    assert commit_times_us(several).tolist() == [committed_us(lsn) for lsn in lsns]
    assert commit_times_us(entry(*transaction(110, INSERT))).tolist() == [committed_us(110)]


def test_a_large_transaction_counts_once() -> None:
    """GIVEN a transaction of several fragments THEN it counts when the last one is durable."""
    parts = assembler(spill_bytes=100)
    begin, *changes, commit = transaction(110, *[INSERT] * 6)
    first, covered = take(parts, [begin, *changes[:4]])
    assert covered == 5
    last, _ = take(parts, [*changes[4:], commit])
    arrivals = Arrivals(now_us=lambda: committed_us(110) + 7000)
    arrivals.note(first)
    assert arrivals.latencies().count == 0
    arrivals.note(last)
    found = arrivals.latencies()
    assert (found.count, round(found.seconds, 6)) == (1, 0.007)
    assert arrivals.latencies().count == 0


def test_positions_are_noted_in_the_file_of_the_log(tmp_path: Path) -> None:
    times = iter([50, 60])
    arrivals = Arrivals(now_us=lambda: next(times))
    arrivals.open(tmp_path, Lsn(100))
    arrivals.note([entry(*transaction(110, INSERT))])
    arrivals.note([entry(*transaction(130, INSERT))])
    arrivals.close()
    notes = durable_times.read(tmp_path)
    assert notes is not None
    assert notes.tolist() == [(110, 50), (130, 60)]
    assert durable_times.waits_us(notes, np.array([110], np.uint64), 90).tolist() == [40]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """GIVEN no file THEN latencies are measured all the same."""
    arrivals = Arrivals()
    arrivals.open(tmp_path / "missing", Lsn(100))
    arrivals.note([entry(*transaction(110, INSERT))])
    assert arrivals.latencies().count == 1


def test_a_server_whose_clock_is_ahead() -> None:
    arrivals = Arrivals(now_us=lambda: committed_us(110) - 1)
    arrivals.note([entry(*transaction(110, INSERT))])
    assert arrivals.latencies().seconds == 0
