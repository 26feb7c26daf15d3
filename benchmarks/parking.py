"""A million parked messages: how long a page of the list takes, and what a retry of all needs."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from benchmarks import messages
from benchmarks.report import Report
from tailrace.parking.listing import Listing
from tailrace.parking.message import Fate, Reason, with_fate
from tailrace.parking.order import Orders
from tailrace.parking.parking import Parking, TaskParking, store_of
from tailrace.parking.part import Parts
from tailrace.parking.selection import Selection
from tailrace.pipeline.guard import Flushes, ParkingGuard
from tailrace.position import ORIGIN, Lsn, Position
from tailrace.sinks.contract import Receipt

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from tailrace.sinks.outcome import Outcome

_PART = 50_000
_KEYS = 100_000
_HISTORY = "h"
_REFUSED = Reason(code="HTTP_422", reason="the receiver answers 422", attempts=1)


def run(quick: bool) -> Report:
    """`parked_page_ms`, `parked_plan_ms` and `parked_rss_mb`."""
    count = 100_000 if quick else 1_000_000
    report = Report(f"parking: {count:,} parked messages of 200 bytes, {_KEYS:,} keys")
    with tempfile.TemporaryDirectory(prefix="trpark-") as temporary:
        folder = Path(temporary)
        run_name = Parking(folder, history=_HISTORY).start_query(ORIGIN)
        for start in range(0, count, _PART):
            _park(folder, start, _PART, Fate.PARKED, _REFUSED)
        end = Position(Lsn(count + 1))
        planner = Parking(folder, history=_HISTORY)
        began = time.perf_counter()
        planner.plan(end, page=0, released=0)
        report.add("import", f"{count / (time.perf_counter() - began):,.0f}/s")
        _list(report, folder, count)
        end = _plan(report, folder, planner, end)
        _retry(report, folder, planner, TaskParking(folder, history=_HISTORY, run=run_name), end)
    return report


def _park(folder: Path, start: int, count: int, fate: Fate, reason: Reason) -> None:
    rows = with_fate(_messages(start, count), fate, [reason], at_us=0)
    Parts(folder / "parts").write(rows, history=_HISTORY)


def _messages(start: int, count: int) -> pa.RecordBatch:
    return messages.numbered(
        range(start, start + count),
        destination=lambda number: b"/orders/%d" % (number % 10),
        payload=messages.text,
        keys=_KEYS,
    )


def _list(report: Report, folder: Path, count: int) -> None:
    """The slowest of several pages of 100 messages, each the median of several attempts."""
    pages = {
        "first": (Selection(), 0),
        "middle": (Selection(), count // 2),
        "by code": (Selection(code="HTTP_422"), count // 2),
        "by destination": (Selection(destination="/orders/7"), count // 2),
        "by wildcard": (Selection(destination="/orders*"), count // 2),
        "by key": (Selection(key="77"), 0),
        "by id": (Selection(ids=(f"{count - 1:016x}-0",)), 0),
    }
    with Listing(store_of(folder)) as listing:
        took = {name: _page_ms(listing, *page) for name, page in pages.items()}
    slowest = max(took, key=took.__getitem__)
    report.figure("parked_page_ms", took[slowest], f"the slowest of {len(took)}: {slowest}")


def _plan(report: Report, folder: Path, planner: Parking, end: Position) -> Position:
    """Planning after a batch that held back one more message of a blocked key."""
    times = []
    for _ in range(5):
        _park(folder, int(end.lsn) - 1, 1, Fate.HELD, Reason(code="HELD"))
        end = Position(Lsn(end.lsn + 1))
        began = time.perf_counter()
        planner.plan(end, page=0, released=0)
        times.append(time.perf_counter() - began)
    ms = statistics.median(times) * 1000
    report.figure("parked_plan_ms", ms, "after a batch that held back one more message")
    return end


def _page_ms(listing: Listing, selection: Selection, after: int) -> float:
    times = []
    for _ in range(5):
        began = time.perf_counter()
        assert listing.page(selection, after=after, limit=100)
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1000


class _Accepting:
    """A sink that accepts everything at once."""

    def __init__(self) -> None:
        self.accepted = self._written = 0

    def open(self, after: Position) -> None:
        """Nothing to connect to."""
        del after

    def inspect(self, batch: pa.RecordBatch) -> Mapping[int, Outcome]:
        """Accept all."""
        del batch
        return {}

    def write(self, batch: pa.RecordBatch) -> None:
        """Count."""
        self._written += batch.num_rows

    def flush(self, *, end: bool = True) -> Receipt:
        """Count."""
        del end
        receipt, self._written = Receipt(messages=self._written), 0
        self.accepted += receipt.messages
        return receipt

    def close(self) -> None:
        """Nothing to close."""


def _retry(
    report: Report, folder: Path, planner: Parking, task: TaskParking, end: Position
) -> None:
    sink, number, process = _Accepting(), 0, psutil.Process()
    with Listing(store_of(folder)) as listing:
        count = listing.totals().messages
        Orders(folder / "orders").submit("retry", Selection(upto=listing.last()))
    before = most = process.memory_info().rss
    began = time.perf_counter()
    while (release := planner.plan(end, page=0, released=number)) is not None:
        guard = ParkingGuard(sink, Flushes(), task, blocks=True)
        guard.begin(end)
        guard.release(task.release(release.number))
        number, end = release.number, release.last
        most = max(most, process.memory_info().rss)
    assert sink.accepted == count
    report.add("retry", f"{count / (time.perf_counter() - began):,.0f}/s", f"{number} batches")
    report.figure("parked_rss_mb", (most - before) / 1e6, "growth during the retry")
