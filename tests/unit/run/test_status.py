from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from tailrace.run import status

if TYPE_CHECKING:
    from pathlib import Path


def test_what_is_written_is_read(tmp_path: Path) -> None:
    status.write(tmp_path, "capture", {"state": "streaming", "messages": 3})
    report = status.read(tmp_path, "capture")
    assert report is not None
    assert report.up
    assert report.state == "streaming"
    assert report.fields["messages"] == 3
    assert report.fields["pid"] == os.getpid()
    assert [path.name for path in tmp_path.iterdir()] == ["capture.json"]


def test_an_old_file_is_not_believed(tmp_path: Path) -> None:
    status.write(tmp_path, "capture", {"state": "streaming"})
    report = status.read(tmp_path, "capture", now=time.time() + status.STALE_S + 1)
    assert report is not None
    assert not report.up
    assert report.state == "down"


def test_the_file_of_a_dead_process_is_not_believed(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from tailrace.run import status; "
        "status.write(Path(sys.argv[1]), 'capture', {'state': sys.argv[2]})"
    )
    for said, shown in (("streaming", "down"), ("GAP", "GAP")):
        subprocess.run([sys.executable, "-c", program, str(tmp_path), said], check=True)
        report = status.read(tmp_path, "capture")
        assert report is not None
        assert not report.up
        assert report.state == shown


def test_what_cannot_be_read_is_nothing(tmp_path: Path) -> None:
    assert status.read(tmp_path, "capture") is None
    for content in (b"", b"{", b"[]", b"\xff"):
        (tmp_path / "capture.json").write_bytes(content)
        assert status.read(tmp_path, "capture") is None


def test_a_file_without_a_pid_is_not_believed(tmp_path: Path) -> None:
    for content in (b"{}", b'{"pid": "1"}', b'{"pid": 0}', b'{"pid": 99999999999999999999}'):
        (tmp_path / "capture.json").write_bytes(content)
        report = status.read(tmp_path, "capture")
        assert report is not None
        assert not report.up


def test_no_folder_no_file(tmp_path: Path) -> None:
    status.write(tmp_path / "none", "capture", {})
    assert not (tmp_path / "none").exists()


def test_clearing_makes_the_folder_and_forgets(tmp_path: Path) -> None:
    where = tmp_path / "data" / "status"
    status.clear(where)
    status.write(where, "capture", {})
    (where / "run.lock").touch()
    status.clear(where)
    assert [path.name for path in where.iterdir()] == ["run.lock"]


def test_a_reporter_ends_with_what_is_true_at_the_end(tmp_path: Path) -> None:
    fields: dict[str, object] = {"state": "running"}
    reporter = status.Reporter(tmp_path, "pipelines", lambda: fields)
    fields["state"] = "stopped"
    reporter.close()
    report = status.read(tmp_path, "pipelines")
    assert report is not None
    assert report.state == "stopped"
