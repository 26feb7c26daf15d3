"""Capture against `pg_recvlogical -f /dev/null`: the same WAL, the same socket, the same run.

Both are timed from the moment they stream to the end of their process; capture has every row
fsynced in its log by then. The runs alternate, so that a slow minute of the machine hits both.
"""

from __future__ import annotations

from statistics import median

from benchmarks.report import Report
from benchmarks.source import Run, Source, capture, log_folder, recvlogical, source
from tailrace.log.reader import Earliest, Log

_SHAPES = {100: 20_000, 1: 600_000}
_QUICK = 20


def run(quick: bool) -> Report:
    """`ratio_100`, `ratio_1`, `rss_mb`."""
    report = Report("capture: rows/s from the slot into the fsynced log")
    repetitions = 2 if quick else 5
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
        slots = f"reference_{rows}_{number}", f"capture_{rows}_{number}"
        for slot in slots:
            made.copy_slot(base, slot)
        reference.append(recvlogical(made, slots[0], until).finish())
        with log_folder() as folder:
            ours.append(capture(made, slots[1], folder, until).finish())
            log = Log.open(folder / "log")
            captured = sum(entry.changes for entry in log.read(log.resolve(Earliest())))
            if captured != total:
                raise RuntimeError(f"{total} rows were committed, {captured} captured")
        for slot in slots:
            made.drop_slot(slot)
    made.drop_slot(base)
    theirs, mine = _rate(reference, total), _rate(ours, total)
    each = "row" if rows == 1 else "rows"
    report.add(f"pg_recvlogical, {rows} {each} a transaction", f"{theirs:,.0f} rows/s")
    report.add(f"tailrace capture, {rows} {each} a transaction", f"{mine:,.0f} rows/s")
    return mine / theirs, max(run.rss_mb for run in ours)


def _rate(runs: list[Run], rows: int) -> float:
    return rows / median(run.seconds for run in runs)
