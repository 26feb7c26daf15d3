"""Changes keep their pace while a large snapshot is made: latency alone, and beside it.

As `latency`, at 1,000 changes a second. The second time a consumer asks for a snapshot of a table
of millions of rows, and for the next one as soon as it is there.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.deliver import WRITE
from benchmarks.delivery import Pipelines, to_nats
from benchmarks.latency import from_nats, measure
from benchmarks.report import Report
from benchmarks.snapshot import request
from benchmarks.source import capture, log_folder, source
from tailrace.testing import EmbeddedNats

if TYPE_CHECKING:
    from benchmarks.source import Source

_ROWS = 5_000_000
_SECONDS, _WARM_S = 40, 20


def run(quick: bool) -> Report:
    """`p99_alone_ms`, `p99_beside_ms`, `ratio_p99`."""
    report = Report("beside: latency of changes while a snapshot is made")
    rows = 200_000 if quick else _ROWS
    with source() as made, log_folder() as folder, EmbeddedNats() as server:
        made.connection.execute(WRITE, (0, rows))
        made.connection.execute("VACUUM ANALYZE item")
        made.connection.execute("CHECKPOINT")
        made.create_slot("beside")
        child = capture(made, "beside", folder)
        child.wait_until_streaming()
        pipelines = Pipelines(
            folder,
            source={"dsn": made.dsn, "publication": "tailrace"},
            bench=to_nats(server.url, encoding="json", snapshots={}),
        )
        made.connection.execute(WRITE, (rows, 100))
        pipelines.wait(lambda: pipelines.events("bench") >= 100)
        alone = _measured(report, made, server.url, quick, "alone")
        with _Snapshots(server.url, pipelines) as snapshots:
            beside = _measured(report, made, server.url, quick, "beside")
        report.figure("ratio_p99", beside / alone, "beside ÷ alone")
        report.add("snapshots meanwhile", f"{snapshots.made} of {rows:,} rows and more")
        pipelines.stop()
        child.process.terminate()
        child.finish()
    return report


def _measured(report: Report, made: Source, url: str, quick: bool, name: str) -> float:
    seconds, warm = (5, 5) if quick else (_SECONDS, _WARM_S)
    delays = measure(made, from_nats(url), rate=1_000, rows=1, seconds=seconds, warm=warm)
    p50, p99 = np.percentile(delays, (50, 99))
    report.figure(f"p50_{name}_ms", float(p50))
    report.figure(f"p99_{name}_ms", float(p99))
    return float(p99)


class _Snapshots:
    """One after another, until the end."""

    def __init__(self, url: str, pipelines: Pipelines) -> None:
        self._url = url
        self._pipelines = pipelines
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.made = 0

    def _run(self) -> None:
        while not self._stop.is_set():
            asyncio.run(request(self._url, self._pipelines))
            self.made += 1

    def __enter__(self) -> _Snapshots:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
