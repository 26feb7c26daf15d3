"""One view of a system from status files: whose state counts, and what is missing."""

from __future__ import annotations

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tailrace import config
from tailrace.observe.figures import (
    CaptureFigures,
    PipelineFigures,
    ProcessFigures,
    RefusedFigures,
    SystemFigures,
)
from tailrace.observe.health import CheckFigures, WatchFigures
from tailrace.observe.kept import SlotFigures
from tailrace.run import status
from tailrace.run.document import unready
from tailrace.run.overview import Overview
from tailrace.run.status import PipelinesStatus, RunStatus
from tests.waiting import wait_for

if TYPE_CHECKING:
    from pathlib import Path

OWN = os.getpid()


class Folder:
    """A data folder with status files."""

    def __init__(self, data: Path) -> None:
        self.config = config.Config.model_validate(
            {
                "data": str(data),
                "log": {"path": str(data / "log")},
                "pipelines": {"bridge": {"sink": {"type": "nats", "url": "nats://127.0.0.1:1"}}},
            }
        )
        self.where = status.folder(data)
        status.clear(self.where)

    def write_run(self, **processes: ProcessFigures) -> None:
        status.write(self.where, "run", RunStatus(started_at=100.0, processes=processes))

    def write_capture(self, state: str, pid: int = OWN) -> None:
        status.write(self.where, "capture", CaptureFigures(state=state, connected=True))
        path = self.where / "capture.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"pid": pid}))

    def read(self) -> SystemFigures:
        return Overview(self.config, SlotFigures, clock=lambda: 160.0).read()


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


@pytest.mark.parametrize(
    ("supervisor", "reported", "shown", "up"),
    [
        (ProcessFigures(state="failed", code="GAP"), "streaming", "GAP", False),
        (ProcessFigures(state="backing-off"), "streaming", "backing-off", False),
        (ProcessFigures(state="running", pid=OWN), None, "running", True),
        (ProcessFigures(state="running", pid=OWN), "streaming", "streaming", True),
        (ProcessFigures(state="running", pid=OWN), "stopping", "stopping", True),
        (ProcessFigures(state="running", pid=OWN + 1), "streaming", "starting", True),
    ],
)
def test_the_state_of_a_supervised_process(
    folder: Folder, supervisor: ProcessFigures, reported: str | None, shown: str, up: bool
) -> None:
    folder.write_run(capture=supervisor)
    if reported is not None:
        folder.write_capture(reported)
    [process] = folder.read().processes
    assert (process.name, process.state, process.up) == ("capture", shown, up)


def test_a_supervised_process_that_reports_no_more_is_down(folder: Folder) -> None:
    dead = 2**22 + 1
    folder.write_run(capture=ProcessFigures(state="running", pid=dead))
    folder.write_capture("streaming", pid=dead)
    system = folder.read()
    assert (system.processes[0].state, system.processes[0].up) == ("down", False)
    assert (system.capture.state, system.capture.connected) == ("down", False)


def test_without_a_supervisor_processes_report_for_themselves(folder: Folder) -> None:
    folder.write_capture("streaming")
    [process] = folder.read().processes
    assert (process.name, process.state, process.up, process.pid) == (
        "capture", "streaming", True, OWN,
    )  # fmt: skip


def test_capture_is_connected_only_while_it_streams(folder: Folder) -> None:
    folder.write_capture("reconnecting")
    assert not folder.read().capture.connected
    folder.write_capture("streaming")
    assert folder.read().capture.connected


def test_the_uptime_is_that_of_the_supervisor(folder: Folder) -> None:
    assert folder.read().uptime_s == 0
    folder.write_run()
    assert folder.read().uptime_s == 60.0


def test_pipelines_of_the_settings_come_first(folder: Folder) -> None:
    reported = {"old": PipelineFigures(state="running", position="bad")}
    status.write(folder.where, "pipelines", PipelinesStatus(state="running", pipelines=reported))
    first, second = folder.read().pipelines
    assert (first.name, first.state) == ("bridge", "starting")
    assert (second.name, second.state, second.position) == ("old", "running", "")
    assert second.lag_bytes is None


def test_a_missing_log_is_an_error_in_the_figures(folder: Folder) -> None:
    log = folder.read().log
    assert "no log" in log.error
    assert (log.bytes, log.segments, log.end_lsn) == (None, None, None)


RUNNING = ProcessFigures(name="capture", state="streaming", up=True)
CONNECTED = CaptureFigures(connected=True)


@pytest.mark.parametrize(
    ("system", "reasons"),
    [
        (SystemFigures(processes=(RUNNING,), capture=CONNECTED), []),
        (SystemFigures(), ["process capture: down"]),
        (SystemFigures(processes=(RUNNING,)), ["capture is not streaming"]),
        (
            SystemFigures(processes=(ProcessFigures(name="capture", state="GAP"),)),
            ["process capture: GAP"],
        ),
        (
            SystemFigures(
                processes=(RUNNING,),
                capture=CONNECTED,
                pipelines=(
                    PipelineFigures(name="a", state="running"),
                    PipelineFigures(name="b", state="failed", code="POISONED"),
                ),
            ),
            ["pipeline b: failed (POISONED)"],
        ),
        (
            SystemFigures(
                processes=(RUNNING,),
                capture=CONNECTED,
                pipelines=(
                    PipelineFigures(
                        name="a",
                        state="running",
                        refused=(RefusedFigures(destination="orders", code="POISONED"),),
                    ),
                ),
            ),
            ["pipeline a: topic orders is refused (POISONED)"],
        ),
    ],
)
def test_why_a_system_is_not_ready(system: SystemFigures, reasons: list[str]) -> None:
    assert unready(system) == reasons


def test_the_watchdog_is_shown_if_there_is_one(folder: Folder) -> None:
    """GIVEN alerts in the settings THEN a watchdog that does not report is down."""
    assert folder.read().watch is None
    alerts = config.Alerts()
    folder.config = folder.config.model_copy(update={"alerts": alerts})
    assert folder.read().watch == WatchFigures(state="down")
    checks = (CheckFigures(check="disk", subject="log", state="healthy"),)
    status.write(folder.where, "watch", WatchFigures(state="watching", checks=checks))
    found = folder.read().watch
    assert found is not None
    assert (found.state, found.checks) == ("watching", checks)
    path = folder.where / "watch.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"pid": 2**22}))
    found = folder.read().watch
    assert found is not None
    assert found.state == "down"


class Turns:
    """A lock that counts who has come."""

    def __init__(self) -> None:
        self.came = 0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self.came += 1
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_clients_that_wait_share_a_reading_that_began_after_they_came(folder: Folder) -> None:
    """GIVEN a reading that takes long WHEN twenty clients ask meanwhile THEN there is one more
    reading, and the one after it is another."""
    begun, ended = threading.Event(), threading.Event()
    readings: list[int] = []

    def slot() -> SlotFigures:
        readings.append(len(readings))
        begun.set()
        ended.wait()
        return SlotFigures(kept_wal_bytes=readings[-1])

    overview = Overview(folder.config, slot)
    overview._turn = turns = Turns()  # type: ignore[assignment]
    with ThreadPoolExecutor(30) as pool:
        first = pool.submit(overview.read)
        begun.wait()
        others = [pool.submit(overview.read) for _ in range(20)]
        wait_for(lambda: turns.came == 21)
        ended.set()
        assert first.result().slot.kept_wal_bytes == 0
        assert {each.result().slot.kept_wal_bytes for each in others} == {1}
    assert overview.read().slot.kept_wal_bytes == 2
