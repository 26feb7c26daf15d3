"""One transaction of five million rows: memory must stay flat and feedback must not stop."""

from __future__ import annotations

import threading
import time

from benchmarks.report import Report
from benchmarks.source import Source, capture, log_folder, source
from tailrace.log.format.entry import Kind
from tailrace.log.reader import Earliest, Log

_ROWS = 5_000_000
_SLOT = "bigtx"
_BIG = """
INSERT INTO item
SELECT g, 'name ' || g, 'user' || g || '@example.com', mod(g, 1000), g * 1.25, mod(g, 2) = 0,
       jsonb_build_object('a', g, 'b', 'text'), now()
FROM generate_series(1, %s) g
"""
_REPLY_GAP = """
SELECT extract(epoch FROM clock_timestamp() - reply_time) FROM pg_stat_replication
WHERE application_name = 'tailrace'
"""


def run(quick: bool) -> Report:
    """`rss_growth_mb`, `max_feedback_gap_s`."""
    rows = _ROWS // 50 if quick else _ROWS
    report = Report(f"bigtx: one transaction of {rows:,} rows")
    with source() as made, log_folder() as folder:
        made.create_slot(_SLOT)
        child = capture(made, _SLOT, folder)
        child.wait_until_streaming()
        made.connection.execute("CALL fill(100, 100)")
        warm = made.end()
        while made.confirmed(_SLOT) < warm:
            time.sleep(0.05)
        before = child.current_rss_mb()
        made.connection.execute("TRUNCATE item")
        began = time.perf_counter()
        writer = threading.Thread(target=_write, args=(made, rows))
        writer.start()
        gap = 0.0
        while writer.is_alive():
            gap = max(gap, _feedback_gap(made))
        committed = time.perf_counter()
        until = made.end()
        while made.confirmed(_SLOT) < until:
            gap = max(gap, _feedback_gap(made))
        done = time.perf_counter()
        peak = child.current_rss_mb("VmHWM")
        child.process.terminate()
        child.finish()
        captured, fragments = _count(Log.open(folder / "log"), rows)
    report.add("rows in the log", f"{captured:,}", f"in {fragments} entries of one transaction")
    report.add("written in", f"{committed - began:.1f} s")
    report.add("captured after the commit in", f"{done - committed:.1f} s")
    report.add("capture's memory before and at its peak", f"{before:.0f} → {peak:.0f} MB")
    report.figure("rss_growth_mb", peak - before)
    report.figure("max_feedback_gap_s", gap, "by pg_stat_replication.reply_time")
    return report


def _write(made: Source, rows: int) -> None:
    with made.server.connect(made.database) as connection:
        connection.execute(_BIG, (rows,))


def _feedback_gap(made: Source) -> float:
    """How old the newest feedback is, by the server; takes a tenth of a second."""
    time.sleep(0.1)
    row = made.connection.execute(_REPLY_GAP).fetchone()
    return float(row[0]) if row else 0.0


def _count(log: Log, rows: int) -> tuple[int, int]:
    entries = [e for e in log.read(log.resolve(Earliest())) if e.kind is Kind.FRAGMENT]
    captured = sum(entry.changes for entry in entries)
    if captured != rows or not entries[-1].ends:
        raise RuntimeError(f"{rows} rows were committed, {captured} captured")
    return captured, len(entries)
