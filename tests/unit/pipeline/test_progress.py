"""Progress of a pipeline from Spark's reports, with a clock that the test moves."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from tailrace.observe.figures import RefusedFigures
from tailrace.observe.histogram import Histogram
from tailrace.open_batch import OpenProgress
from tailrace.pipeline.latencies import Latencies
from tailrace.pipeline.progress import Progress
from tailrace.position import Position


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def batch(
    position: str = "0/10.0", opened: int = 0, **delivered: int | str | None
) -> tuple[dict[str, Any], Position]:
    """A report of Spark, and where the batch ended: at 0/90 if it was open."""
    end: dict[str, object] = {"position": position}
    report = {
        "batchId": 1,
        "durationMs": {"triggerExecution": 82, "addBatch": 60},
        "sources": [{"endOffset": end | ({"opened": opened, "open": True} if opened else {})}],
        "observedMetrics": {"delivered": delivered} if delivered else {},
    }
    return report, Position.parse("0/90.0" if opened else position)


def test_a_batch_is_added_up() -> None:
    progress = Progress("bridge", clock=Clock())
    committed = datetime(2026, 1, 31, 12, tzinfo=UTC)
    for position in ("0/10.0", "0/20.3"):
        progress.add_batch(
            *batch(
                position,
                messages=10,
                bytes=500,
                duplicates=1,
                p50_us=1500,
                p99_us=2500,
                committed_us=int(committed.timestamp() * 1_000_000),
            )
        )
    figures = progress.current()
    assert (figures.name, figures.position, figures.batches) == ("bridge", "0/20.3", 2)
    assert (figures.events, figures.bytes, figures.duplicates) == (20, 1000, 2)
    assert (figures.batch_ms, figures.latency_ms_p50, figures.latency_ms_p99) == (82.0, 1.5, 2.5)
    assert figures.last_committed_at == committed


def test_refused_destinations_are_those_of_the_last_receipt() -> None:
    """GIVEN a sink that leaves a topic out WHEN a batch has no receipt THEN the topic stays
    refused, until a receipt has no refusals."""
    progress = Progress("shadow", clock=Clock())
    refusal = {
        "destination": "orders", "code": "POISONED", "reason": "too large", "hint": "h",
        "since_s": 1769860800.0,
    }  # fmt: skip
    progress.add_batch(*batch(messages=0, refusals=json.dumps([refusal])))
    expected = RefusedFigures(
        pipeline="shadow",
        destination="orders",
        code="POISONED",
        reason="too large",
        hint="h",
        since=datetime(2026, 1, 31, 12, tzinfo=UTC),
    )
    assert progress.current().refused == (expected,)
    progress.add_batch(*batch())
    assert progress.current().refused == (expected,)
    progress.add_batch(*batch(messages=3, bytes=5, refusals="[]"))
    assert progress.current().refused == ()


def test_an_empty_batch_moves_the_position_only() -> None:
    progress = Progress("bridge", clock=Clock())
    progress.add_batch(*batch(messages=1, bytes=5, p50_us=10, p99_us=10, committed_us=10))
    before = progress.current()
    progress.add_batch(*batch("0/30.0"))
    after = progress.current()
    assert (after.batches, after.position) == (2, "0/30.0")
    assert (after.events, after.latency_ms_p50) == (1, before.latency_ms_p50)
    assert after.last_committed_at == before.last_committed_at


def test_rows_of_a_backfill_have_no_commit_time() -> None:
    progress = Progress("bridge", clock=Clock())
    progress.add_batch(*batch(messages=5, bytes=50, p50_us=None, p99_us=None, committed_us=None))
    figures = progress.current()
    assert (figures.events, figures.latency_ms_p50, figures.last_committed_at) == (5, None, None)


def test_an_open_batch_is_counted_once() -> None:
    """While it runs it notes what it has delivered, and Spark reports the sum at its end."""
    progress = Progress("bridge", clock=Clock())
    noted = OpenProgress(
        batch="7@0/10.0", reached="0/20.0", messages=3, bytes=30, p50_us=1, p99_us=2
    )
    progress.add_open(noted)
    figures = progress.current()
    assert (figures.events, figures.bytes, figures.position) == (3, 30, "0/20.0")
    assert (figures.open, figures.batches) == (True, 0)
    progress.add_open(replace(noted, reached="0/30.0", messages=5, bytes=50, duplicates=1))
    assert (progress.current().events, progress.current().duplicates) == (5, 1)
    progress.add_batch(*batch("0/10.0", opened=7, messages=6, bytes=60, duplicates=1))
    figures = progress.current()
    assert (figures.events, figures.bytes, figures.duplicates) == (6, 60, 1)
    assert (figures.open, figures.batches, figures.position) == (True, 1, "0/90.0")
    progress.add_open(OpenProgress(batch="8@0/90.0", reached="0/A0.0", messages=2, bytes=20))
    assert progress.current().events == 8
    # A query that starts again may deliver the same batch, and counts it from its beginning.
    progress.start_query()
    progress.add_open(OpenProgress(batch="8@0/90.0", reached="0/A0.0", messages=1, bytes=10))
    assert progress.current().events == 9
    progress.add_batch(*batch("0/B0.0", messages=4))
    assert (progress.current().events, progress.current().open) == (13, False)


def test_the_rate_covers_the_last_ten_seconds() -> None:
    clock = Clock()
    progress = Progress("bridge", clock=clock)
    progress.add_batch(*batch(messages=100))
    assert progress.current().events_per_s == 10.0
    clock.now += 6
    progress.add_batch(*batch(messages=50))
    assert progress.current().events_per_s == 15.0
    clock.now += 5
    assert progress.current().events_per_s == 5.0
    clock.now += 6
    assert progress.current().events_per_s == 0.0


def test_a_state_replaces_the_last_error() -> None:
    progress = Progress("bridge", clock=Clock())
    progress.set_state("retrying", "SINK_UNREACHABLE", "no answer")
    assert (progress.current().state, progress.current().code) == ("retrying", "SINK_UNREACHABLE")
    progress.set_state("running")
    figures = progress.current()
    assert (figures.state, figures.code, figures.message, figures.running) == (
        "running", "", "", True,
    )  # fmt: skip


def test_a_note_that_is_read_after_the_report_of_its_batch() -> None:
    """Batches may end faster than they are looked at."""
    progress = Progress("p")
    progress.start_query()
    progress.add_batch(*batch("0/10.0", opened=7, messages=20, bytes=200))
    noted = OpenProgress(batch="7@0/10.0", reached="0/20.0", messages=3, bytes=30)
    progress.add_open(noted)
    assert (progress.current().events, progress.current().position) == (20, "0/90.0")
    progress.add_batch(*batch("0/A0.0", messages=5, bytes=50))
    progress.add_open(noted)
    assert (progress.current().events, progress.current().bytes) == (25, 250)
    assert not progress.current().open


def test_a_report_that_is_read_after_a_note_of_the_next_batch() -> None:
    progress = Progress("p")
    progress.start_query()
    progress.add_open(OpenProgress(batch="7@0/10.0", reached="0/20.0", messages=3))
    progress.add_open(OpenProgress(batch="8@0/90.0", reached="0/A0.0", messages=2))
    progress.add_batch(*batch("0/10.0", opened=7, messages=20))
    progress.add_open(OpenProgress(batch="8@0/90.0", reached="0/B0.0", messages=4))
    progress.add_batch(*batch("0/90.0", opened=8, messages=5))
    assert progress.current().events == 25


def latencies(*ages_us: int) -> str:
    """Of a task that has delivered changes of these ages, each half as long in the log."""
    ages = np.array(sorted(ages_us), np.int64)
    return Latencies(Histogram.of(ages), Histogram.of(ages // 2)).dump()


def test_attempts_are_successes_and_failures() -> None:
    progress = Progress("bridge", clock=Clock())
    progress.add_batch(*batch(messages=10, duplicates=3, failed=4))
    progress.add_batch(*batch(messages=0, failed=1))
    figures = progress.current()
    assert (figures.attempts, figures.events, figures.failures) == (15, 10, 5)


def test_histograms_of_lanes_add_up() -> None:
    """GIVEN a batch of three lanes, one without changes THEN all of the others count."""
    progress = Progress("bridge", clock=Clock())
    lanes: dict[str, Any] = {
        "latencies_0": latencies(2_000, 30_000),
        "latencies_1": None,
        "latencies_2": latencies(2_400_000),
    }
    progress.add_batch(*batch(messages=3, **lanes))
    figures = progress.current()
    assert figures.delivery_latency == Latencies.parse(latencies(2_000, 30_000, 2_400_000)).delivery
    assert figures.internal_latency.count == 3


def test_the_histogram_of_an_open_batch_is_counted_once() -> None:
    """Over a restart of the query it only grows, as Prometheus expects of a counter."""
    progress = Progress("bridge", clock=Clock())
    progress.start_query()
    noted = OpenProgress(
        batch="7@0/10.0", reached="0/20.0", messages=1, failed=2, latencies=latencies(1_000)
    )
    progress.add_open(noted)
    progress.add_open(replace(noted, messages=2, failed=3, latencies=latencies(1_000, 2_000)))
    assert progress.current().delivery_latency.count == 2
    assert progress.current().attempts == 5
    progress.add_batch(
        *batch(opened=7, messages=3, failed=3, latencies_0=latencies(1_000, 2_000, 3_000))
    )
    assert progress.current().delivery_latency.count == progress.current().events == 3
    progress.start_query()
    progress.add_open(replace(noted, messages=1, failed=0))
    figures = progress.current()
    assert (figures.delivery_latency.count, figures.internal_latency.count) == (4, 4)
    assert (figures.attempts, figures.failures) == (7, 3)
