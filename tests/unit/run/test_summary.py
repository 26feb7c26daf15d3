"""The summary at the end of a run, from the status files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.observe.copies import SnapshotFigures
from tailrace.observe.figures import (
    CaptureFigures,
    PipelineFigures,
    ProcessFigures,
)
from tailrace.position import Lsn
from tailrace.run import status
from tailrace.run.status import PipelinesStatus, RunStatus
from tailrace.run.summary import summary

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def where(tmp_path: Path) -> Path:
    status.clear(status.folder(tmp_path))
    return status.folder(tmp_path)


def write_run(where: Path, *, stopped_by: str = "", **processes: ProcessFigures) -> None:
    report = RunStatus(
        state="stopped", started_at=1000.0, stopped_by=stopped_by, processes=processes
    )
    status.write(where, "run", report)


def test_a_run_that_a_signal_has_ended(where: Path) -> None:
    write_run(where, stopped_by="SIGTERM", capture=ProcessFigures(state="stopped"))
    capture = CaptureFigures(
        changes=12, transactions=3, bytes=4096, sessions=3, acknowledged=Lsn.parse("0/191BFD0")
    )
    status.write(where, "capture", capture)
    pipelines = {
        "a": PipelineFigures(events=7, bytes=700, duplicates=1, reconnects=2),
        "b": PipelineFigures(events=5, bytes=50),
    }
    snapshots = (
        SnapshotFigures(id="snap-1", table="public.users", state="complete", rows=1000),
        SnapshotFigures(id="snap-2", table="public.orders", state="failed", error="no privilege"),
        SnapshotFigures(id="snap-3", table="public.items", state="running", rows=7),
    )
    status.write(where, "pipelines", PipelinesStatus(pipelines=pipelines, snapshots=snapshots))
    assert summary(where, exit_code=0, now=1062.34) == {
        "reason": "SIGTERM",
        "exit_code": 0,
        "run_time_s": 62.3,
        "captured_changes": 12,
        "captured_transactions": 3,
        "captured_bytes": 4096,
        "delivered_changes": 12,
        "delivered_bytes": 750,
        "duplicates": 1,
        "snapshots": 1,
        "snapshot_rows": 1000,
        "snapshots_failed": 1,
        "last_lsn": "0/191BFD0",
        "reconnects": 2,
        "sink_reconnects": 2,
        "restarts": {},
        "errors": ["snapshot snap-2 of public.orders: no privilege"],
    }


def test_a_run_that_ended_because_no_worker_could_go_on(where: Path) -> None:
    write_run(
        where,
        capture=ProcessFigures(state="failed", code="GAP", exit_code=10, restarts=2),
        pipelines=ProcessFigures(state="waiting"),
    )
    failed = PipelineFigures(state="failed", code="SINK_REFUSED", message="no permission")
    status.write(where, "pipelines", PipelinesStatus(pipelines={"bridge": failed}))
    found = summary(where, exit_code=10, now=1000.0)
    assert found["reason"] == "process capture: GAP"
    assert found["exit_code"] == 10
    assert found["restarts"] == {"capture": 2}
    assert found["errors"] == [
        "process capture: GAP",
        "pipeline bridge: SINK_REFUSED: no permission",
    ]


def test_a_run_whose_processes_wrote_nothing(where: Path) -> None:
    found = summary(where, exit_code=1, now=1000.0)
    assert found["reason"] == "unknown"
    assert (found["run_time_s"], found["captured_changes"], found["last_lsn"]) == (0.0, 0, "0/0")
    assert found["errors"] == []
