"""One view of a running system: the status files, the log on disk, and the slot.

Reading never waits for PostgreSQL or a sink. A missing or invalid status file means missing
figures, never an error.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tailrace import __version__
from tailrace.errors import StorageError, TailraceError
from tailrace.log import retention
from tailrace.log.reader import Log
from tailrace.log.store import LocalStore
from tailrace.observe.figures import CaptureFigures, PipelineFigures, ProcessFigures, SystemFigures
from tailrace.observe.health import WatchFigures
from tailrace.observe.kept import LogFigures, PinFigures, SlotFigures
from tailrace.observe.replica import FollowingFigures, LeaderFigures
from tailrace.observe.schema_changes import SchemaChangeCount, SchemaChangeFigures
from tailrace.parking import parking
from tailrace.parking.listing import Listing
from tailrace.position import Position
from tailrace.run import status
from tailrace.run.lag import LagClock
from tailrace.run.status import PipelinesStatus, RunStatus
from tailrace.schemas.drift import record
from tailrace.sinks.pull.database import store_of
from tailrace.sinks.pull.listing import Listing as PullListing
from tailrace.sinks.pull.settings import PullSink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from tailrace.config import Config
    from tailrace.run.status import Report
    from tailrace.schemas.drift.record import DriftRecord, RecordedDrift

_SCHEMA_CHANGES_SHOWN = 20


class Overview:
    """Reads a running system. `slot` returns the last answer of the WAL monitor."""

    def __init__(
        self,
        config: Config,
        slot: Callable[[], SlotFigures],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._config = config
        self._where = status.folder(config.data)
        self._slot = slot
        self._clock = clock
        self._created_at = clock()
        self._lag = LagClock()
        self._turn = threading.Lock()
        self._begun = 0
        self._last: tuple[int, SystemFigures] | None = None

    def read(self) -> SystemFigures:
        """All figures, as of now. Calls that wait for one another share a reading that began after
        they did: many clients cost as much as one, and none gets older figures."""
        begun = self._begun
        with self._turn:
            if self._last is None or self._last[0] <= begun:
                self._begun += 1
                self._last = self._begun, self._read()
            return self._last[1]

    def _read(self) -> SystemFigures:
        run = status.read(self._where, "run", RunStatus)
        capture = status.read(self._where, "capture", CaptureFigures)
        pipelines = status.read(self._where, "pipelines", PipelinesStatus)
        leading = status.read(self._where, "replicate", LeaderFigures)
        following = status.read(self._where, "follow", FollowingFigures)
        log, end = read_log(self._config)
        changes = record.load(self._config.data)
        started_at = run.status.started_at if run and run.up else None
        return SystemFigures(
            version=__version__,
            uptime_s=max(self._clock() - (started_at or self._created_at), 0),
            processes=tuple(
                _processes(
                    run,
                    {
                        "capture": capture,
                        "pipelines": pipelines,
                        "replicate": leading,
                        "follow": following,
                    },
                )
            ),
            capture=_capture(capture),
            pipelines=tuple(self._lagging(_pipelines(self._config, pipelines, end), end, capture)),
            snapshots=pipelines.status.snapshots if pipelines else (),
            backfills=pipelines.status.backfills if pipelines else (),
            schema_changes=tuple(map(_change, changes.found[-_SCHEMA_CHANGES_SHOWN:])),
            schema_change_counts=tuple(_counts(changes)),
            slot=self._slot(),
            log=log,
            pins=tuple(_pins(self._config, self._clock())),
            leading=_leading(self._config, leading),
            following=_following(following),
            watch=_watch(self._config, status.read(self._where, "watch", WatchFigures)),
        )

    def _lagging(
        self,
        pipelines: Iterator[PipelineFigures],
        end: Position | None,
        capture: Report[CaptureFigures] | None,
    ) -> Iterator[PipelineFigures]:
        """The pipelines with their lag in seconds: at least the age of the last commit."""
        now = self._clock()
        if end is not None:
            self._lag.note(now, end)
        last = capture.status.last_committed_at if capture else None
        age_s = 0.0 if last is None else max(now - last.timestamp(), 0.0)
        for each in pipelines:
            position = _position(each.position)
            if end is None or position is None:
                yield each
                continue
            lag_s = max(self._lag.lag_s(now, position), age_s) if position < end else 0.0
            yield replace(each, lag_s=round(lag_s, 3))


def read_log(config: Config) -> tuple[LogFigures, Position | None]:
    """The figures of the log, and the position of its last change."""
    store = LocalStore(config.log.path)
    try:
        log = Log(store)
        segments = log.segments()
        end = log.end()
        size = sum(store.size(name.file) for name in segments)
        earliest = log.earliest()
    except (TailraceError, OSError) as error:
        code = error.code if isinstance(error, TailraceError) else StorageError.code
        return LogFigures(error=f"{code}: {error}"), None
    figures = LogFigures(
        end=str(end.position),
        end_lsn=end.end_lsn,
        earliest=str(earliest),
        bytes=size,
        segments=len(segments),
    )
    return figures, end.position


def _pins(config: Config, now: float) -> Iterator[PinFigures]:
    try:
        pins = retention.read_pins(LocalStore(config.log.path))
    except (TailraceError, OSError):
        # Capture reports it.
        return
    for name, pin in sorted(pins.items()):
        yield PinFigures(
            name=name, position=str(pin.position), age_s=max(now - pin.renewed_at, 0.0)
        )


def _processes(
    run: Report[RunStatus] | None,
    reports: Mapping[str, Report[Any] | None],
) -> Iterator[ProcessFigures]:
    """The processes as the supervisor sees them, or as they report without a supervisor."""
    supervised = run.status.processes if run and run.up else None
    if supervised is None:
        for name, report in reports.items():
            if report is not None:
                yield ProcessFigures(name=name, state=report.state, up=report.up, pid=report.pid)
        return
    for name, figures in supervised.items():
        yield _process(replace(figures, name=name), reports.get(name))


def _process(figures: ProcessFigures, report: Report[Any] | None) -> ProcessFigures:
    """The supervisor's figures, with the state that the process itself reports.

    | supervisor      | status file            | state                  |
    |-----------------|------------------------|------------------------|
    | failed, GAP     | any                    | GAP                    |
    | backing-off     | any                    | backing-off            |
    | running, pid 7  | none                   | running                |
    | running, pid 7  | pid 7, streaming       | streaming              |
    | running, pid 7  | pid 7, too old         | down                   |
    | running, pid 7  | pid 6: of the last run | starting               |
    """
    running = figures.state == "running"
    state = figures.code or figures.state
    if running and report is not None:
        state = report.state if report.pid == figures.pid else "starting"
    return replace(figures, state=state, up=running and state != "down")


def _capture(report: Report[CaptureFigures] | None) -> CaptureFigures:
    if report is None:
        return CaptureFigures()
    connected = report.up and report.state == "streaming"
    return replace(report.status, state=report.state, connected=connected)


def _leading(config: Config, report: Report[LeaderFigures] | None) -> LeaderFigures | None:
    """What the sender reports; that followers are configured, if it does not run."""
    settings = config.replication
    if not settings.followers:
        return None
    if report is None or not report.up:
        followers = report.status.followers if report else ()
        return LeaderFigures(
            state=report.state if report else "down",
            mode=settings.mode,
            quorum=settings.waits_for,
            in_quorum=False if settings.waits_for else None,
            followers=tuple(replace(each, connected=False) for each in followers),
        )
    return report.status


def _following(report: Report[FollowingFigures] | None) -> FollowingFigures | None:
    if report is None:
        return None
    return replace(
        report.status, state=report.state, connected=report.up and report.status.connected
    )


def _watch(config: Config, report: Report[WatchFigures] | None) -> WatchFigures | None:
    """What the watchdog reports; that it is down, if the settings have one and it does not run."""
    if report is None:
        return None if config.alerts is None else WatchFigures(state="down")
    return replace(report.status, state=report.state)


def _pipelines(
    config: Config, report: Report[PipelinesStatus] | None, end: Position | None
) -> Iterator[PipelineFigures]:
    """The pipelines of the settings, then those that still run without being in the settings."""
    reported = (report.status.pipelines if report else None) or {}
    for name in [*config.pipelines, *(reported.keys() - config.pipelines.keys())]:
        shape = config.pipelines[name].shape if name in config.pipelines else ""
        figures = replace(reported.get(name, PipelineFigures()), name=name, shape=shape)
        if report is None or not report.up:
            figures = replace(figures, state="down")
        position = _position(figures.position)
        lag_bytes = max(end.lsn - position.lsn, 0) if end and position else None
        figures = replace(figures, position=str(position or ""), lag_bytes=lag_bytes)
        figures = _with_parked(figures, config.data)
        pulled = name in config.pipelines and isinstance(config.pipelines[name].sink, PullSink)
        yield _with_pull(figures, config.data) if pulled else figures


def _with_parked(figures: PipelineFigures, data: Path) -> PipelineFigures:
    try:
        with Listing(parking.store_of(parking.folder_of(data, figures.name))) as listing:
            totals = listing.totals()
    except TailraceError:
        # `tailrace parked` reports it.
        return figures
    return replace(figures, parked_messages=totals.messages, parked_bytes=totals.bytes)


def _with_pull(figures: PipelineFigures, data: Path) -> PipelineFigures:
    try:
        with PullListing(store_of(data, figures.name)) as listing:
            totals, oldest_ms = listing.totals(), listing.oldest_ms()
    except TailraceError:
        # The service that serves the consumers reports it.
        return figures
    age_s = 0.0 if oldest_ms is None else max(time.time() - oldest_ms / 1000, 0.0)
    return replace(
        figures,
        pull_pending=totals.messages,
        pull_pending_bytes=totals.bytes,
        pull_out=totals.out,
        pull_exhausted=totals.exhausted,
        pull_oldest_s=round(age_s, 3),
        pull_delivered=totals.delivered,
        pull_redelivered=totals.redelivered,
        pull_acknowledged=totals.acknowledged,
    )


def _position(text: str) -> Position | None:
    try:
        return Position.parse(text)
    except ValueError:
        return None


def _change(found: RecordedDrift) -> SchemaChangeFigures:
    return SchemaChangeFigures(
        kind=found.kind,
        table=f"{found.namespace}.{found.table}",
        subject=found.subject,
        detail=found.detail,
        hint=found.hint,
        lsn=found.lsn,
        found_at=found.found_at,
        pipelines=found.pipelines,
        waiting=tuple(found.waiting),
    )


def _counts(changes: DriftRecord) -> Iterator[SchemaChangeCount]:
    for pipeline, kinds in changes.counts.items():
        for kind, count in kinds.items():
            yield SchemaChangeCount(pipeline=pipeline, kind=kind, count=count)
