"""Progress of one pipeline: Spark's reports of finished micro-batches, added up into figures."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from tailrace.observe.figure import Recorder
from tailrace.observe.figures import PipelineFigures

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_WINDOW_S = 10.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Progress(Recorder[PipelineFigures]):
    """The figures of a pipeline, and the rate over the last ten seconds."""

    def __init__(self, name: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(PipelineFigures(name=name))
        self._clock = clock
        self._recent: deque[tuple[float, int]] = deque()
        """When recent micro-batches ended, and their events."""

    def current(self) -> PipelineFigures:
        """The figures as of now."""
        oldest = self._clock() - _WINDOW_S
        while self._recent and self._recent[0][0] < oldest:
            self._recent.popleft()
        events = sum(count for _, count in self._recent)
        return replace(self.figures, events_per_s=round(events / _WINDOW_S, 1))

    def set_state(self, state: str, code: str = "", message: str = "") -> None:
        """Replace the state, and the error that explains it."""
        self.set(state=state, code=code, message=message)

    def add_batch(self, batch: Mapping[str, Any]) -> None:
        """Add a finished micro-batch, as `StreamingQueryProgress` describes it.

        The `delivered` metrics are those that `tailrace.pipeline.deliver` observes.
        """
        self.add(batches=1)
        self.set(
            batch_ms=float(batch["durationMs"].get("triggerExecution", 0)),
            position=str(batch["sources"][0]["endOffset"]["position"]),
        )
        delivered = batch.get("observedMetrics", {}).get("delivered", {})
        events = delivered.get("messages") or 0
        if events:
            self._add_delivered(events, delivered)

    def _add_delivered(self, events: int, delivered: Mapping[str, Any]) -> None:
        self._recent.append((self._clock(), events))
        self.add(
            events=events,
            bytes=delivered.get("bytes") or 0,
            duplicates=delivered.get("duplicates") or 0,
        )
        # Rows of a backfill have no commit time of their own.
        if delivered.get("p50_us") is not None:
            self.set(
                latency_ms_p50=round(delivered["p50_us"] / 1000, 1),
                latency_ms_p99=round(delivered["p99_us"] / 1000, 1),
            )
        if delivered.get("committed_us") is not None:
            self.set(last_committed_at=_EPOCH + timedelta(microseconds=delivered["committed_us"]))
