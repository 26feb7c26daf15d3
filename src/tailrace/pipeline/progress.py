"""Progress of one pipeline, added up into figures.

Spark reports micro-batches when they have finished; open batches also note what they have delivered
while they run. The report of an open batch repeats what was noted, which is counted once. Reports
and notes are read at different times: a note may come after the report of its batch, and a report
after a note of the next batch.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import orjson

from tailrace.observe.figure import Recorder
from tailrace.observe.figures import PipelineFigures, RefusedFigures
from tailrace.open_batch import OpenBatch, OpenProgress
from tailrace.pipeline.latencies import Latencies
from tailrace.pipeline.source.offset import Offset

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tailrace.position import Position

_WINDOW_S = 10.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def delivered_of(batch: Mapping[str, Any]) -> OpenProgress:
    """What a finished micro-batch has delivered, as `tailrace.pipeline.deliver` observes it."""
    metrics = batch.get("observedMetrics", {}).get("delivered", {})
    known = {name: value for name, value in metrics.items() if value is not None}
    lanes = [known.pop(name) for name in list(known) if name.startswith("latencies_")]
    if lanes:
        known["latencies"] = sum(map(Latencies.parse, lanes), start=Latencies()).dump()
    return OpenProgress(**known)


class Progress(Recorder[PipelineFigures]):
    """The figures of a pipeline, and the rate over the last ten seconds."""

    def __init__(self, name: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(PipelineFigures(name=name))
        self._clock = clock
        self._recent: deque[tuple[float, int]] = deque()
        """When recent events were counted, and how many."""
        self._counted: dict[str, OpenProgress] = {}
        """What is counted of open batches without a report, by batch."""
        self._reported = 0
        """The number of the last open batch with a report."""

    def current(self) -> PipelineFigures:
        """The figures as of now."""
        oldest = self._clock() - _WINDOW_S
        while self._recent and self._recent[0][0] < oldest:
            self._recent.popleft()
        # A copy: the thread that counts may append meanwhile.
        events = sum(count for _, count in tuple(self._recent))
        return replace(self.figures, events_per_s=round(events / _WINDOW_S, 1))

    def set_state(self, state: str, code: str = "", message: str = "") -> None:
        """Replace the state, and the error that explains it."""
        self.set(state=state, code=code, message=message)

    def start_query(self) -> None:
        """Start to count: what an earlier query has noted is counted."""
        self._counted, self._reported = {}, 0

    def add_open(self, noted: OpenProgress) -> None:
        """Add what an open batch has delivered since the last call."""
        if OpenBatch.parse(noted.batch).number > self._reported:
            self.set(open=True)
            self._add(noted, self._counted.get(noted.batch))
            self.set(position=noted.reached)
            self._counted[noted.batch] = noted

    def add_batch(self, batch: Mapping[str, Any], end: Position) -> None:
        """Add a finished micro-batch, as `StreamingQueryProgress` describes it, and its end.

        The `delivered` metrics are those that `tailrace.pipeline.deliver` observes.
        """
        offset = Offset.parse(batch["sources"][0]["endOffset"])
        delivered = delivered_of(batch)
        known = None
        if offset.open:
            known = self._counted.pop(str(offset.open_batch), None)
            self._reported = offset.open_batch.number
        self._add(delivered, known)
        # After the counts: they include every change up to the position.
        self.add(batches=1)
        self.set(
            batch_ms=float(batch["durationMs"].get("triggerExecution", 0)),
            position=str(end),
            open=offset.open,
        )

    def _add(self, delivered: OpenProgress, known: OpenProgress | None) -> None:
        """Add what is delivered beyond what is counted already."""
        known = known or OpenProgress()
        if delivered.refusals is not None:
            self.set(refused=self._refused(delivered.refusals))
        events = delivered.messages - known.messages
        duplicates = delivered.duplicates - known.duplicates
        failures = delivered.failed - known.failed
        self.add(
            bytes=delivered.bytes - known.bytes,
            duplicates=duplicates,
            parked=delivered.parked - known.parked,
            failures=failures,
            attempts=events + failures,
        )
        self._add_latencies(delivered, known)
        if events:
            self._recent.append((self._clock(), events))
            self.add(events=events)
            self._set_times(delivered)

    def _add_latencies(self, delivered: OpenProgress, known: OpenProgress) -> None:
        if delivered.latencies != known.latencies:
            new = Latencies.parse(delivered.latencies) - Latencies.parse(known.latencies)
            self.add(delivery_latency=new.delivery, internal_latency=new.internal)

    def _refused(self, refusals: str) -> tuple[RefusedFigures, ...]:
        return tuple(
            RefusedFigures(
                pipeline=self.figures.name,
                destination=each["destination"],
                code=each["code"],
                reason=each["reason"],
                hint=each["hint"],
                since=datetime.fromtimestamp(each["since_s"], UTC),
            )
            for each in orjson.loads(refusals)
        )

    def _set_times(self, delivered: OpenProgress) -> None:
        # Rows of a backfill have no commit time of their own.
        if delivered.p50_us is not None and delivered.p99_us is not None:
            self.set(
                latency_ms_p50=round(delivered.p50_us / 1000, 1),
                latency_ms_p99=round(delivered.p99_us / 1000, 1),
            )
        if delivered.committed_us is not None:
            self.set(last_committed_at=_EPOCH + timedelta(microseconds=delivered.committed_us))
