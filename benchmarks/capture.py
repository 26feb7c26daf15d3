"""Capture against `pg_recvlogical -f /dev/null`: the same WAL, the same socket, the same run.

Both are timed from the moment they stream to the end of their process; capture has every row
fsynced in its log by then. The runs come in pairs, each order in turn, and the ratio is the median
over the pairs, so that a slow minute of the machine hits both sides.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from benchmarks.report import Report
from benchmarks.source import Run, Source, capture, log_folder, recvlogical, source
from tailrace.log.reader import Earliest, Log

if TYPE_CHECKING:
    from tailrace.position import Lsn

_SHAPES = {100: 20_000, 1: 600_000}
_QUICK = 20


def run(quick: bool) -> Report:
    """`ratio_100`, `ratio_1`, `rss_mb`."""
    report = Report("capture: rows/s from the slot into the fsynced log")
    repetitions = 2 if quick else 8
    peaks = []
    with source() as made:
        for rows, transactions in _SHAPES.items():
            count = transactions // _QUICK if quick else transactions
            ratio, peak = _compare(made, report, rows, count, repetitions)
            report.figure(f"ratio_{rows}", ratio, "capture ÷ pg_recvlogical")
            peaks.append(peak)
    report.figure("rss_mb", max(peaks), "peak of the capture process")
    return report


def _compare(
    made: Source, report: Report, rows: int, transactions: int, repetitions: int
) -> tuple[float, float]:
    base = f"base_{rows}"
    made.connection.execute("TRUNCATE item")
    made.create_slot(base)
    made.connection.execute("CALL fill(%s, %s)", (transactions, rows))
    made.connection.execute("CHECKPOINT")
    until = made.end()
    total = rows * transactions
    reference, ours = [], []
    for number in range(repetitions):
        if number % 2:
            ours.append(_capture(made, base, until, total))
        reference.append(_reference(made, base, until))
        if not number % 2:
            ours.append(_capture(made, base, until, total))
    made.drop_slot(base)
    each = "row" if rows == 1 else "rows"
    for name, runs in (("pg_recvlogical", reference), ("tailrace capture", ours)):
        rate = total / median(run.seconds for run in runs)
        report.add(f"{name}, {rows} {each} a transaction", f"{rate:,.0f} rows/s")
    pairs = zip(reference, ours, strict=True)
    ratio = median(theirs.seconds / mine.seconds for theirs, mine in pairs)
    return ratio, max(run.rss_mb for run in ours)


def _reference(made: Source, base: str, until: Lsn) -> Run:
    with made.copied_slot(base) as slot:
        return recvlogical(made, slot, until).finish()


def _capture(made: Source, base: str, until: Lsn, rows: int) -> Run:
    with made.copied_slot(base) as slot, log_folder() as folder:
        run = capture(made, slot, folder, until).finish()
        log = Log.open(folder / "log")
        captured = sum(entry.changes for entry in log.read(log.resolve(Earliest())))
        if captured != rows:
            raise RuntimeError(f"{rows} rows were committed, {captured} captured")
        return run
