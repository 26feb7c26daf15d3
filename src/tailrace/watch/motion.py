"""Since when something stands still: what the watchdog remembers from one moment to the next."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace.position import Position
    from tailrace.watch.facts import Facts, LogFact, PipelineFact, SourceFacts

PAGE_HEADER_BYTES = 40
"""The insert position of an idle server may be behind the header of a page without a record."""
_SAMPLES = 600


class _Still:
    """How long a value has been the same while there was something to do."""

    def __init__(self) -> None:
        self._value: object = None
        self._since: float | None = None

    def note(self, value: object, *, busy: bool, now: float) -> None:
        if not busy:
            self._since = None
        elif self._since is None or value != self._value:
            self._value, self._since = value, now

    def seconds(self, now: float) -> float:
        return 0.0 if self._since is None else now - self._since


class Motion:
    """Call `note` with the facts of each moment, then ask."""

    def __init__(self) -> None:
        self._capture = _Still()
        self._pipelines: dict[str, _Still] = {}
        self._states: dict[str, _Still] = {}
        self._ends: deque[tuple[float, Position]] = deque()
        """When the log was first seen to end at a position, in order."""
        self._ends_every_s = 1.0

    def note(self, facts: Facts) -> None:
        """Remember this moment."""
        files = facts.files
        if files is None:
            return
        if files.log is not None:
            self._note_end(files.log, facts.now)
        # Without an answer nothing is known of the WAL: time does not count.
        if facts.source is not None and facts.source.wal_end is not None:
            self._note_capture(facts, facts.source, files.log)
        for pipeline in files.pipelines:
            still = self._pipelines.setdefault(pipeline.name, _Still())
            still.note(pipeline.position, busy=_is_behind(pipeline, files.log), now=facts.now)
            state = self._states.setdefault(pipeline.name, _Still())
            state.note(pipeline.state, busy=True, now=facts.now)

    def _note_end(self, log: LogFact, now: float) -> None:
        if self._ends and (
            log.end <= self._ends[-1][1] or now - self._ends[-1][0] < self._ends_every_s
        ):
            return
        self._ends.append((now, log.end))
        if len(self._ends) > _SAMPLES:
            # Half as many, twice as far apart: a long lag needs no precision.
            kept = list(self._ends)[::2]
            self._ends = deque(kept)
            self._ends_every_s *= 2

    def _note_capture(self, facts: Facts, source: SourceFacts, log: LogFact | None) -> None:
        assert facts.files is not None
        assert source.wal_end is not None
        report = facts.files.reports.get("capture")
        received = report.content.get("bytes") if report else None
        reached = max(source.confirmed or 0, log.end_lsn if log else 0)
        self._capture.note(
            (source.confirmed, log.end_lsn if log else None, received),
            busy=source.wal_end > reached + PAGE_HEADER_BYTES,
            now=facts.now,
        )

    def capture_still_s(self, now: float) -> float:
        """Seconds for which the WAL was ahead of capture, and capture did not move."""
        return self._capture.seconds(now)

    def pipeline_still_s(self, name: str, now: float) -> float:
        """Seconds for which the log was ahead of a pipeline, and the pipeline did not move."""
        still = self._pipelines.get(name)
        return 0.0 if still is None else still.seconds(now)

    def state_s(self, name: str, now: float) -> float:
        """Seconds for which a pipeline has been in its state."""
        state = self._states.get(name)
        return 0.0 if state is None else state.seconds(now)

    def lag_s(self, pipeline: PipelineFact, log: LogFact | None, now: float) -> float:
        """Seconds that a pipeline is behind the log.

        The log was seen to end after the pipeline's position so long ago. What was there before the
        watchdog started is dated by its commit time.
        """
        if pipeline.position is None or log is None or pipeline.position >= log.end:
            return 0.0
        behind = next((at for at, end in self._ends if end > pipeline.position), None)
        if behind is None:
            return 0.0
        seen_s = now - behind
        if behind == self._ends[0][0] and pipeline.committed_at is not None:
            return max(seen_s, log.committed_at - pipeline.committed_at)
        return seen_s


def _is_behind(pipeline: PipelineFact, log: LogFact | None) -> bool:
    """Whether a pipeline that runs has something to do. Without a log, or a position, it waits."""
    if pipeline.state != "running" or pipeline.position is None or log is None:
        return False
    return pipeline.position < log.end
