"""Progress of a pipeline from Spark's reports, with a clock that the test moves."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from tailrace.pipeline.progress import Progress


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def batch(position: str = "0/10.0", **delivered: int | None) -> dict[str, Any]:
    return {
        "batchId": 1,
        "durationMs": {"triggerExecution": 82, "addBatch": 60},
        "sources": [{"endOffset": {"position": position}}],
        "observedMetrics": {"delivered": delivered} if delivered else {},
    }


def test_a_batch_is_added_up() -> None:
    progress = Progress("bridge", clock=Clock())
    committed = datetime(2026, 1, 31, 12, tzinfo=UTC)
    for position in ("0/10.0", "0/20.3"):
        progress.add_batch(
            batch(
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


def test_an_empty_batch_moves_the_position_only() -> None:
    progress = Progress("bridge", clock=Clock())
    progress.add_batch(batch(messages=1, bytes=5, p50_us=10, p99_us=10, committed_us=10))
    before = progress.current()
    progress.add_batch(batch("0/30.0"))
    after = progress.current()
    assert (after.batches, after.position) == (2, "0/30.0")
    assert (after.events, after.latency_ms_p50) == (1, before.latency_ms_p50)
    assert after.last_committed_at == before.last_committed_at


def test_rows_of_a_backfill_have_no_commit_time() -> None:
    progress = Progress("bridge", clock=Clock())
    progress.add_batch(batch(messages=5, bytes=50, p50_us=None, p99_us=None, committed_us=None))
    figures = progress.current()
    assert (figures.events, figures.latency_ms_p50, figures.last_committed_at) == (5, None, None)


def test_the_rate_covers_the_last_ten_seconds() -> None:
    clock = Clock()
    progress = Progress("bridge", clock=clock)
    progress.add_batch(batch(messages=100))
    assert progress.current().events_per_s == 10.0
    clock.now += 6
    progress.add_batch(batch(messages=50))
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
