"""Since when something stands still: what the watchdog remembers from one moment to the next."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from tailrace.watch.facts import UNANSWERED_S

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.position import Lsn, Position
    from tailrace.watch.facts import (
        Facts,
        FileFacts,
        LogFact,
        PipelineFact,
        ProcessFact,
        SourceFacts,
    )

PAGE_HEADER_BYTES = 40
"""The insert position of an idle server may be behind the header of a page without a record."""
_SAMPLES = 600
_RELEASE = 0.95
"""A limit that was exceeded is exceeded until the value is that much lower: a value around a limit
would send an alert and a recovery in turn."""
_FAILING = frozenset({"retrying", "failed"})
_IDLE = frozenset({"paused", "stopped", "failed"})
"""States of pipelines that deliver nothing until an operator continues them."""


class _Still:
    """For how many `seconds` a value has been the same while there was something to do."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._value: object = None
        self._noted_at: float | None = None

    def note(self, value: object, *, busy: bool = True, now: float) -> None:
        if not busy or value != self._value:
            self.seconds = 0.0
        elif self._noted_at is not None:
            self.seconds += now - self._noted_at
        self._value, self._noted_at = value, now if busy else None

    def pause(self) -> None:
        """Do not count the time until the next note."""
        self._noted_at = None


class _Crashes:
    """When a process ended that was not stopped."""

    def __init__(self) -> None:
        self._restarts: int | None = None
        self._times: deque[float] = deque(maxlen=_SAMPLES)

    def note(self, process: ProcessFact, now: float) -> None:
        if self._restarts is not None and process.exit_code:
            self._times.extend([now] * min(process.restarts - self._restarts, _SAMPLES))
        self._restarts = process.restarts

    def count(self, since: float) -> int:
        return sum(at >= since for at in self._times)


class _Failing:
    """Since when attempts fail and none succeeds, while there is something to deliver."""

    def __init__(self) -> None:
        self._delivered: int | None = None
        self._failures = 0
        self._since: float | None = None

    def note(self, pipeline: PipelineFact, *, behind: bool, now: float) -> None:
        # Another number of delivered messages, also a lower one of a new process.
        if not behind or pipeline.delivered != self._delivered:
            self._delivered, self._failures = pipeline.delivered, pipeline.failures
            self._since = None
        elif pipeline.failures > self._failures and self._since is None:
            self._since = now

    def seconds(self, now: float) -> float:
        return 0.0 if self._since is None else now - self._since


class Motion:
    """Call `note` with the facts of each moment, then ask."""

    def __init__(self) -> None:
        self._capture = _Still()
        self._pipelines: dict[str, _Still] = {}
        self._states: dict[str, _Still] = {}
        self._failing: dict[str, _Failing] = {}
        self._written: dict[str, tuple[Position | None, Mapping[int, Position]]] = {}
        """The position of pipelines, and what was written after it at most."""
        self._failed_at: dict[str, Position | None] = {}
        """Where pipelines were when they failed last."""
        self._processes: dict[str, _Still] = {}
        self._crashes: dict[str, _Crashes] = {}
        self._exceeded: set[tuple[str, str, str]] = set()
        self._ends: deque[tuple[float, Position]] = deque()
        """When the log was first seen to end at a position, in order."""
        self._ends_every_s = 1.0

    def exceeds(
        self, check: str, value: float, limit: float, *, severity: str = "error", subject: str = ""
    ) -> bool:
        """Whether a value has reached a limit, and is not well below it again."""
        place = (check, subject, severity)
        if value >= limit * (_RELEASE if place in self._exceeded else 1.0):
            self._exceeded.add(place)
        else:
            self._exceeded.discard(place)
        return place in self._exceeded

    def note(self, facts: Facts) -> None:
        """Remember this moment."""
        files, source = facts.files, facts.source
        # Without an answer nothing is known: time does not count.
        if files is None:
            known = (self._pipelines, self._states, self._processes)
            for still in (self._capture, *(each for stills in known for each in stills.values())):
                still.pause()
            return
        if files.log is not None:
            self._note_end(files.log, facts.now)
        if source is None or source.wal_end is None or facts.source_age_s > UNANSWERED_S:
            self._capture.pause()
        else:
            self._note_capture(files, source, source.wal_end, facts.now)
        for pipeline in files.pipelines:
            self._note_pipeline(pipeline, files.log, facts.now)
        for process in files.processes:
            self._processes.setdefault(process.name, _Still()).note(process.pid, now=facts.now)
            self._crashes.setdefault(process.name, _Crashes()).note(process, facts.now)

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

    def _note_capture(
        self, files: FileFacts, source: SourceFacts, wal_end: Lsn, now: float
    ) -> None:
        log = files.log
        report = files.reports.get("capture")
        received = report.content.get("bytes") if report else None
        reached = max(source.confirmed or 0, log.end_lsn if log else 0)
        self._capture.note(
            (source.confirmed, log.end_lsn if log else None, received),
            busy=wal_end > reached + PAGE_HEADER_BYTES,
            now=now,
        )

    def _note_pipeline(self, pipeline: PipelineFact, log: LogFact | None, now: float) -> None:
        name, state = pipeline.name, pipeline.state
        self._states.setdefault(name, _Still()).note(state, now=now)
        failing = self._failing.setdefault(name, _Failing())
        failing.note(pipeline, behind=_is_behind(pipeline, log), now=now)
        if state in _FAILING:
            self._failed_at[name] = pipeline.position
        reached = self._furthest(pipeline)
        still = self._pipelines.setdefault(name, _Still())
        if state in _IDLE or not _is_behind(pipeline, log):
            still.note(reached, busy=False, now=now)
        elif state == "running":
            still.note(reached, now=now)
        else:
            # It starts, or waits to start again: its state says why it does not move.
            still.pause()

    def _furthest(self, pipeline: PipelineFact) -> object:
        """How far a pipeline has come. To write the same again after a retry is not farther."""
        position, written = self._written.get(pipeline.name, (None, {}))
        if position != pipeline.position:
            written = {}
        farther = {lane: max(at, written.get(lane, at)) for lane, at in pipeline.written.items()}
        self._written[pipeline.name] = found = (pipeline.position, {**written, **farther})
        return found

    @property
    def capture_still_s(self) -> float:
        """Seconds for which the WAL was ahead of capture, and capture did not move."""
        return self._capture.seconds

    def pipeline_still_s(self, name: str) -> float:
        """Seconds for which a pipeline ran, the log was ahead of it, and it did not move."""
        still = self._pipelines.get(name)
        return 0.0 if still is None else still.seconds

    def state_s(self, name: str) -> float:
        """Seconds for which a pipeline has been in its state."""
        state = self._states.get(name)
        return 0.0 if state is None else state.seconds

    def is_recovering(self, pipeline: PipelineFact, log: LogFact | None) -> bool:
        """Whether a pipeline is still where it failed, with something to deliver."""
        failed_at = self._failed_at.get(pipeline.name)
        return _is_behind(pipeline, log) and pipeline.position == failed_at

    def process_s(self, name: str) -> float:
        """Seconds for which a process has been the same."""
        process = self._processes.get(name)
        return 0.0 if process is None else process.seconds

    def crashes(self, name: str, since: float) -> int:
        """How often a process has ended since then that was not stopped."""
        crashes = self._crashes.get(name)
        return 0 if crashes is None else crashes.count(since)

    def failing_s(self, name: str, now: float) -> float:
        """Seconds for which attempts of a pipeline have failed, and none has succeeded."""
        failing = self._failing.get(name)
        return 0.0 if failing is None else failing.seconds(now)

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
    """Whether a pipeline has something to do. Without a log, or a position, it waits."""
    return pipeline.position is not None and log is not None and pipeline.position < log.end
