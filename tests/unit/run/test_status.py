from __future__ import annotations

import errno
import json
import os
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tailrace.observe.figures import CaptureFigures, PipelineFigures, ProcessFigures
from tailrace.observe.histogram import Histogram
from tailrace.position import Lsn
from tailrace.run import status
from tailrace.run.status import PipelinesStatus, RunStatus

if TYPE_CHECKING:
    from tailrace.run.status import Report


def read(where: Path, *, now: float | None = None) -> Report[CaptureFigures] | None:
    return status.read(where, "capture", CaptureFigures, now=now)


def test_a_written_status_is_read(tmp_path: Path) -> None:
    written = CaptureFigures(
        state="streaming",
        messages=3,
        acknowledged=Lsn.parse("16/B374D848"),
        last_committed_at=datetime(2026, 1, 2, tzinfo=UTC),
    )
    status.write(tmp_path, "capture", written)
    report = read(tmp_path)
    assert report is not None
    assert report.up
    assert report.state == "streaming"
    assert report.status == written
    assert report.pid == os.getpid()
    assert [path.name for path in tmp_path.iterdir()] == ["capture.json"]
    content = json.loads((tmp_path / "capture.json").read_bytes())
    assert (content["acknowledged"], content["messages"]) == ("16/B374D848", 3)


@pytest.mark.parametrize(
    "written",
    [
        RunStatus(state="running", started_at=1.5, processes={"capture": ProcessFigures(pid=7)}),
        PipelinesStatus(state="running", pipelines={"a": PipelineFigures(name="a", events=2)}),
        PipelinesStatus(
            pipelines={"a": PipelineFigures(delivery_latency=Histogram.of(np.array([5, 10**7])))}
        ),
        PipelinesStatus(),
    ],
)
def test_nested_figures_are_read(tmp_path: Path, written: RunStatus | PipelinesStatus) -> None:
    status.write(tmp_path, "run", written)
    report: Report[RunStatus] | Report[PipelinesStatus] | None
    if isinstance(written, RunStatus):
        report = status.read(tmp_path, "run", RunStatus)
    else:
        report = status.read(tmp_path, "run", PipelinesStatus)
    assert report is not None
    assert report.status == written


def test_an_old_file_means_down(tmp_path: Path) -> None:
    status.write(tmp_path, "capture", CaptureFigures(state="streaming"))
    report = read(tmp_path, now=time.time() + status.STALE_S + 1)
    assert report is not None
    assert not report.up
    assert report.state == "down"


def test_a_file_from_the_future_means_down(tmp_path: Path) -> None:
    """The clock was set back: the age of the file is not known before it is written again."""
    status.write(tmp_path, "capture", CaptureFigures(state="streaming"))
    report = read(tmp_path, now=time.time() - 3600)
    assert report is not None
    assert not report.up


def test_a_full_disk_still_has_the_newest_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status.write(tmp_path, "capture", CaptureFigures(state="streaming", changes=1))

    def full(_path: Path, _content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    status.write(tmp_path, "capture", CaptureFigures(state="DISK_FULL", changes=2))
    report = read(tmp_path)
    assert report is not None
    assert (report.state, report.status.changes) == ("DISK_FULL", 2)
    assert [path.name for path in tmp_path.iterdir()] == ["capture.json"]


def test_the_file_of_a_dead_process_means_down_unless_it_has_an_error_code(tmp_path: Path) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    for reported, shown in (("streaming", "down"), ("GAP", "GAP")):
        (tmp_path / "capture.json").write_text(json.dumps({"pid": dead.pid, "state": reported}))
        report = read(tmp_path)
        assert report is not None
        assert not report.up
        assert report.state == shown


def test_a_missing_or_unreadable_file_is_none(tmp_path: Path) -> None:
    assert read(tmp_path) is None
    for content in (b"", b"{", b"[]", b"\xff"):
        (tmp_path / "capture.json").write_bytes(content)
        assert read(tmp_path) is None


def test_a_file_without_a_valid_pid_means_down(tmp_path: Path) -> None:
    for content in (b"{}", b'{"pid": "1"}', b'{"pid": 0}', b'{"pid": 99999999999999999999}'):
        (tmp_path / "capture.json").write_bytes(content)
        report = read(tmp_path)
        assert report is not None
        assert not report.up


def test_invalid_fields_count_as_missing(tmp_path: Path) -> None:
    pipelines = {"a": {"events": "x", "bytes": 5}, "b": 3}
    snapshots = ["odd", {"id": "s", "rows": "x"}, 4]
    content = {"state": 1, "pipelines": pipelines, "snapshots": snapshots, "new": True}
    (tmp_path / "pipelines.json").write_text(json.dumps(content))
    report = status.read(tmp_path, "pipelines", PipelinesStatus)
    assert report is not None
    found = report.status
    assert (found.state, found.pipelines) == ("starting", {"a": PipelineFigures(bytes=5)})
    assert [(each.id, each.rows) for each in found.snapshots] == [("s", 0)]


def test_without_a_folder_nothing_is_written(tmp_path: Path) -> None:
    status.write(tmp_path / "none", "capture", CaptureFigures())
    assert not (tmp_path / "none").exists()


def test_clear_creates_the_folder_and_removes_old_files(tmp_path: Path) -> None:
    where = tmp_path / "data" / "status"
    status.clear(where)
    status.write(where, "capture", CaptureFigures())
    (where / "run.lock").touch()
    status.clear(where)
    assert [path.name for path in where.iterdir()] == ["run.lock"]


def test_a_reporter_writes_the_final_status(tmp_path: Path) -> None:
    current = [PipelinesStatus(state="running")]
    reporter = status.Reporter(tmp_path, "pipelines", lambda: current[0])
    current[0] = PipelinesStatus(state="stopped")
    reporter.close()
    report = status.read(tmp_path, "pipelines", PipelinesStatus)
    assert report is not None
    assert report.state == "stopped"


def test_a_file_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    """GIVEN a file that the system does not let a reader have THEN it is as if it were missing."""
    (tmp_path / "capture.json").mkdir()
    assert read(tmp_path) is None


def test_a_histogram_of_another_release_is_missing(tmp_path: Path) -> None:
    """GIVEN other buckets THEN the rest of the figures is read, and /metrics has what it knows."""
    written = CaptureFigures(messages=3, ingestion_latency=Histogram.of(np.array([5])))
    status.write(tmp_path, "capture", written)
    file = tmp_path / "capture.json"
    content = json.loads(file.read_bytes())
    content["ingestion_latency"]["counts"] += [1]
    file.write_text(json.dumps(content))
    report = read(tmp_path)
    assert report is not None
    assert (report.status.messages, report.status.ingestion_latency) == (3, Histogram())
