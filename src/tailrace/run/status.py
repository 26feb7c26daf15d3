"""Status files: the figures that each process reports about itself, in `DATA/status/NAME.json`.

A process replaces its file about once per second. `tailrace serve` reads the files, and other
programs may. A file counts as current while it is young and its writer runs; after that it still
shows how the process ended. `tailrace run` creates the folder: a process that runs alone, without
the folder, writes nothing. A failed write never stops a process: a full disk shows in the log and
in its error.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from tailrace import private
from tailrace.errors import CorruptError, StorageError
from tailrace.observe.copies import (  # noqa: TC001 - pydantic reads the annotations
    BackfillFigures,
    SnapshotFigures,
)
from tailrace.observe.figure import Figures
from tailrace.observe.figures import (
    CaptureFigures,
    PipelineFigures,
    ProcessFigures,
)
from tailrace.observe.health import WatchFigures
from tailrace.observe.replica import FollowingFigures, LeaderFigures
from tailrace.process import alive
from tailrace.state_file import StateFile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WRITE_EVERY_S = 1.0
STALE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus(Figures):
    """The file of the supervisor, `run.json`."""

    state: str = ""
    started_at: float | None = None
    stopped_by: str = ""
    """The signal that ended it; empty if no worker could go on."""
    processes: dict[str, ProcessFigures] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinesStatus(Figures):
    """The file of the Spark application, `pipelines.json`."""

    state: str = "starting"
    pipelines: dict[str, PipelineFigures] | None = None
    snapshots: tuple[SnapshotFigures, ...] = ()
    backfills: tuple[BackfillFigures, ...] = ()


Status = (
    RunStatus | CaptureFigures | PipelinesStatus | LeaderFigures | FollowingFigures | WatchFigures
)
S = TypeVar(
    "S",
    RunStatus,
    CaptureFigures,
    PipelinesStatus,
    LeaderFigures,
    FollowingFigures,
    WatchFigures,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(Generic[S]):
    """What a process wrote last. `up` says whether the process still runs and reports."""

    up: bool
    pid: int | None
    status: S

    @property
    def state(self) -> str:
        """The state that the process reported; `down` if it is gone without an error code."""
        reported = self.status.state
        return reported if self.up or reported.isupper() else "down"


def folder(data: Path) -> Path:
    """The folder of the status files in a data folder."""
    return data / "status"


def write(where: Path, process: str, status: Status) -> None:
    """Replace the file of this process. Errors are ignored."""
    _write(_file(where, process), status)


def read(where: Path, process: str, kind: type[S], *, now: float | None = None) -> Report[S] | None:
    """The file of a process; None if it is missing or not a JSON object."""
    file = _file(where, process)
    try:
        age_s = (time.time() if now is None else now) - file.path.stat().st_mtime
        content = file.read()
    except (OSError, CorruptError, StorageError):
        return None
    if content is None:
        return None
    pid = content.get("pid")
    pid = pid if isinstance(pid, int) else None
    # A file from the future is as old as any: the clock was set back after it was written.
    up = abs(age_s) <= STALE_S and pid is not None and alive(pid)
    return Report(up=up, pid=pid, status=_decode(kind, content))


def pipelines_run(data: Path) -> bool:
    """Whether pipelines run on a data folder."""
    report = read(folder(data), "pipelines", PipelinesStatus)
    return report is not None and report.up


def clear(where: Path) -> None:
    """Create the folder and remove the files of an earlier run."""
    private.create_folder(where)
    for path in (*where.glob("*.json"), *where.glob("*.tmp")):
        path.unlink(missing_ok=True)


def _file(where: Path, process: str) -> StateFile[dict[str, Any]]:
    # Not durable: after a power cut a status is worthless, and an fsync per second would compete
    # with those of the log.
    return StateFile(where / f"{process}.json", dict[str, Any], durable=False)


def _write(file: StateFile[dict[str, Any]], status: Status) -> None:
    header = {"pid": os.getpid(), "time": datetime.now(UTC).isoformat()}
    with contextlib.suppress(OSError):
        file.write(header | _ADAPTERS[type(status)].dump_python(status, mode="json"))


_ADAPTERS: dict[type[Status], TypeAdapter[Any]] = {
    RunStatus: TypeAdapter(RunStatus),
    CaptureFigures: TypeAdapter(CaptureFigures),
    PipelinesStatus: TypeAdapter(PipelinesStatus),
    LeaderFigures: TypeAdapter(LeaderFigures),
    FollowingFigures: TypeAdapter(FollowingFigures),
    WatchFigures: TypeAdapter(WatchFigures),
}


def _decode(kind: type[S], content: dict[str, Any]) -> S:
    """Read what fits: a field of another type counts as missing, and never fails the reader."""
    adapter: TypeAdapter[S] = _ADAPTERS[kind]
    try:
        return adapter.validate_python(content)
    except ValidationError as error:
        # From the back: the indexes of earlier errors in a list stay valid.
        for detail in reversed(error.errors(include_url=False, include_input=False)):
            _remove(content, detail["loc"])
    try:
        return adapter.validate_python(content)
    except ValidationError:
        return kind()


def _remove(content: Any, location: tuple[int | str, ...]) -> None:
    """Remove the innermost entry of an object or list that a location names."""
    value, owner, key = content, None, None
    for part in location:
        try:
            value, owner, key = value[part], value, part
        except (KeyError, IndexError, TypeError):
            break
    if owner is not None:
        del owner[key]


class Reporter:
    """Writes the status of this process once per second from a thread, until closed."""

    def __init__(self, where: Path, process: str, status: Callable[[], Status]) -> None:
        self._file = _file(where, process)
        self._status = status
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="status", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            self.write()
            if self._closing.wait(WRITE_EVERY_S):
                return

    def write(self) -> None:
        """Write now."""
        _write(self._file, self._status())

    def close(self) -> None:
        """End the thread, and write the final status."""
        self._closing.set()
        self._thread.join()
        self.write()
