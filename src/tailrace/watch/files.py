"""Reads the files of the data folder and the kernel's. Runs in a thread: a disk may hang.

Other processes write these files, and any of them may be missing, old or half written. So nothing
is required of their content: what does not fit is unknown.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import deque
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tailrace import checkpoint
from tailrace.errors import TailraceError
from tailrace.log.format import mark as marks
from tailrace.log.lease import last_epoch
from tailrace.log.store import LocalStore
from tailrace.log.term import term_of
from tailrace.parking.listing import Listing
from tailrace.position import Position
from tailrace.process import alive
from tailrace.watch import memory
from tailrace.watch.certificates import certificates
from tailrace.watch.facts import (
    DiskFact,
    FileFacts,
    FollowerFact,
    LogFact,
    PipelineFact,
    ProcessFact,
    Report,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from tailrace.config import Config
    from tailrace.watch.facts import CertificateFact

PROCESSES = ("capture", "pipelines", "replicate", "follow")
"""The processes that write a status file."""
_SIZES_EVERY_S, _CERTIFICATES_EVERY_S = 10.0, 600.0
_MEMORY_SAMPLES = 3
"""The least of these counts: between two collections of garbage, a JVM may take all that it may."""
_PG_EPOCH_S = 946_684_800
"""2000-01-01 in seconds since 1970: PostgreSQL counts microseconds from there."""
_MAX_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    """What takes long to read."""

    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    log_bytes: int | None = None
    parked: Mapping[str, int | None] = field(default_factory=dict)


class FileWatch:
    """The files of a config. Sizes and certificates are read less often than states."""

    def __init__(self, config: Config, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._clock = clock
        self._status = config.data / "status"
        self._log = LocalStore(config.log.path)
        self._memory: deque[int] = deque(maxlen=_MEMORY_SAMPLES)
        self._sizes = _Sizes()
        self._certificates: tuple[CertificateFact, ...] = ()
        self._sizes_at = self._certificates_at = float("-inf")

    def ask(self) -> FileFacts:
        """Read once."""
        run = _report(self._status / "run.json")
        reports = {name: _report(self._status / f"{name}.json") for name in PROCESSES}
        known = {name: report for name, report in reports.items() if report is not None}
        self._ask_slowly(run, known)
        log, term, log_error = self._read_log()
        return FileFacts(
            run=run,
            loaded_at=str(_content(self._config.data / "settings" / "running.json").get("at", "")),
            reports=known,
            processes=tuple(_processes(run)),
            pipelines=tuple(self._pipelines(known.get("pipelines"))),
            quorum=_quorum(known.get("replicate")),
            followers=tuple(_followers(known.get("replicate"))),
            leader_connected=_flag(known.get("follow"), "connected"),
            log=log,
            term=term,
            log_error=log_error,
            disks=tuple(self._disks()),
            log_bytes=self._sizes.log_bytes,
            memory_bytes=self._sizes.memory_bytes,
            memory_limit_bytes=self._sizes.memory_limit_bytes,
            certificates=self._certificates,
        )

    def _ask_slowly(self, run: Report | None, reports: Mapping[str, Report]) -> None:
        now = self._clock()
        if now - self._sizes_at >= _SIZES_EVERY_S:
            self._sizes_at = now
            pids = [each.pid for each in (run, *reports.values()) if each and each.alive]
            used = memory.used_bytes([*pids, os.getpid()])
            if used is not None:
                self._memory.append(used)
            self._sizes = _Sizes(
                memory_bytes=min(self._memory, default=None),
                memory_limit_bytes=memory.limit_bytes(),
                log_bytes=_size(self._config.log.path),
                parked={name: self._parked(name) for name in self._config.pipelines},
            )
        if now - self._certificates_at >= _CERTIFICATES_EVERY_S:
            self._certificates_at = now
            self._certificates = certificates(self._config)

    def _read_log(self) -> tuple[LogFact | None, int | None, str]:
        """The end of the log, its term, and why they cannot be read."""
        try:
            term = term_of(last_epoch(self._log))
            mark = marks.read(self._log, marks.for_readers(self._log))
        except TailraceError as error:
            return None, None, error.code
        except OSError as error:
            return None, None, error.strerror or type(error).__name__
        if mark is None:
            return None, term, ""
        committed_at = mark.time / 1e6 + _PG_EPOCH_S
        log = LogFact(end=mark.position, end_lsn=mark.end_lsn, committed_at=committed_at)
        return log, term, ""

    def _pipelines(self, report: Report | None) -> Iterator[PipelineFact]:
        reported = _mapping(report.content.get("pipelines")) if report else {}
        for name in self._config.pipelines:
            figures = _mapping(reported.get(name))
            refused = figures.get("refused")
            yield PipelineFact(
                name=name,
                state=str(figures.get("state", "")),
                code=str(figures.get("code", "")),
                # Before its first batch a process reports none: a sink may hang in that one.
                position=_position(figures.get("position")) or self._reached(name),
                written=checkpoint.open_batches(self._checkpoint(name)).written(),
                committed_at=_time(figures.get("last_committed_at")),
                refused=tuple(
                    str(_mapping(each).get("destination", ""))
                    for each in (refused if isinstance(refused, list) else ())
                ),
                parked=self._sizes.parked.get(name),
                delivered=_count(figures.get("events")),
                failures=_count(figures.get("failures")) or 0,
            )

    def _checkpoint(self, name: str) -> Path:
        return checkpoint.folder_of(self._config.data, name)

    def _reached(self, name: str) -> Position | None:
        """Where a pipeline continues, by its files."""
        folder = self._checkpoint(name)
        try:
            return checkpoint.delivered(folder) or checkpoint.start(folder)
        except (TailraceError, OSError, LookupError, TypeError, ValueError):
            # The pipeline reports it.
            return None

    def _parked(self, name: str) -> int | None:
        try:
            with Listing(self._config.data / "parked" / name / "parked.db") as listing:
                return listing.totals().messages
        except TailraceError:
            return None

    def _disks(self) -> Iterator[DiskFact]:
        for name, folder in (("log", self._config.log.path), ("data", self._config.data)):
            with contextlib.suppress(OSError):
                found = os.statvfs(folder)
                yield DiskFact(
                    folder=name,
                    free_bytes=found.f_bavail * found.f_frsize,
                    total_bytes=found.f_blocks * found.f_frsize,
                )


def _content(path: Path) -> Mapping[str, Any]:
    """A JSON object; empty if it is missing, too large or something else."""
    try:
        with path.open("rb") as file:
            return _mapping(json.loads(file.read(_MAX_BYTES)))
    except (OSError, ValueError):
        return {}


def _report(path: Path) -> Report | None:
    """A status file; None if it is missing or damaged."""
    try:
        written_at = path.stat().st_mtime
    except OSError:
        return None
    content = _content(path)
    pid = content.get("pid")
    if not isinstance(pid, int):
        return None
    state = content.get("state")
    return Report(
        pid=pid,
        # From the future: the clock was set back after it was written.
        age_s=abs(time.time() - written_at),
        alive=alive(pid, wrote_at=written_at),
        state=state if isinstance(state, str) else "",
        content=content,
    )


def _processes(run: Report | None) -> Iterator[ProcessFact]:
    listed = _mapping(run.content.get("processes")) if run else {}
    for name, each in listed.items():
        figures = _mapping(each)
        pid, restarts, exit_code = map(figures.get, ("pid", "restarts", "exit_code"))
        yield ProcessFact(
            name=name,
            state=str(figures.get("state", "")),
            code=str(figures.get("code", "")),
            restarts=restarts if isinstance(restarts, int) else 0,
            exit_code=exit_code if isinstance(exit_code, int) else None,
            pid=pid if isinstance(pid, int) else None,
        )


def _quorum(report: Report | None) -> bool | None:
    if report is None or not report.content.get("quorum"):
        return None
    return bool(report.content.get("in_quorum")) and report.alive


def _followers(report: Report | None) -> Iterator[FollowerFact]:
    listed = report.content.get("followers") if report else None
    for each in listed if isinstance(listed, list) else ():
        figures = _mapping(each)
        yield FollowerFact(
            address=str(figures.get("address", "")),
            connected=bool(figures.get("connected")),
            state=str(figures.get("state", "")),
        )


def _flag(report: Report | None, name: str) -> bool | None:
    return None if report is None else report.alive and bool(report.content.get(name))


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _position(text: object) -> Position | None:
    try:
        return Position.parse(str(text))
    except ValueError:
        return None


def _time(text: object) -> float | None:
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _size(folder: Path) -> int | None:
    try:
        with os.scandir(folder) as entries:
            return sum(entry.stat().st_size for entry in entries if entry.is_file())
    except OSError:
        return None
