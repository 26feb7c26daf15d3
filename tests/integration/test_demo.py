"""`tailrace demo` as a process: shows every kind of change, counts, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

OPERATIONS = ("INSERT", "UPDATE", "DELETE", "TRUNCATE", "MESSAGE")


def start(temporary: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tailrace.cli", "demo", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary), "TAILRACE_SLOT": "of-another-database"},
    )


def read_to(process: subprocess.Popen[str], word: str) -> Iterator[str]:
    """Lines up to the first one with `word`."""
    assert process.stdout is not None
    for line in process.stdout:
        yield line
        if word in line:
            return
    pytest.fail(f"the demo ended without {word}")


class Household:
    """The processes and folders of a running demo."""

    def __init__(self, pid: int, temporary: Path) -> None:
        self.processes = psutil.Process(pid).children(recursive=True)
        commands = [process.cmdline() for process in self.processes]
        self.captures = [line for line in commands if "tailrace.cli" in line]
        (data,) = {
            Path(part[2:]) for line in commands for part in line if part.startswith("-D/tmp")
        }
        self.folders = [data.parent, *temporary.iterdir()]

    def assert_gone(self) -> None:
        assert [process for process in self.processes if process.is_running()] == []
        assert [folder for folder in self.folders if folder.exists()] == []


def test_it_shows_everything_and_leaves_nothing(tmp_path: Path) -> None:
    with start(tmp_path, "--seconds=5", "--rate=10") as process:
        shown = list(read_to(process, "INSERT"))
        household = Household(process.pid, tmp_path)
        out, said = process.communicate()
    text = "".join(shown) + out
    assert process.returncode == 0, text + said
    assert said == ""
    assert shown[0] == "· starting PostgreSQL 18\n"
    for operation in OPERATIONS:
        assert f"\n{operation:8} " in text
    for words in (" → ", "⟨unchanged⟩", "slot lag", "capture stopped in order, exit code 0"):
        assert words in text
    assert "the log holds what the shop committed" in text
    assert len(household.captures) == 1
    assert len(household.folders) == 2
    household.assert_gone()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_in_order(how: signal.Signals, tmp_path: Path) -> None:
    with start(tmp_path, "--rate=20") as process:
        list(read_to(process, "INSERT"))
        household = Household(process.pid, tmp_path)
        process.send_signal(how)
        out, said = process.communicate()
    assert process.returncode == 0, out + said
    assert "the log holds what the shop committed" in out
    household.assert_gone()


def test_a_capture_that_dies_is_an_error_and_says_so(tmp_path: Path) -> None:
    with start(tmp_path) as process:
        list(read_to(process, "INSERT"))
        household = Household(process.pid, tmp_path)
        (capture,) = [child for child in household.processes if "tailrace.cli" in child.cmdline()]
        capture.kill()
        _, said = process.communicate()
    assert process.returncode == 1
    assert "capture ended with code -9" in said
    assert "Traceback" not in said
    household.assert_gone()


def test_without_the_servers_it_says_what_to_install() -> None:
    hidden = (
        "import importlib.util as util; find = util.find_spec;"
        "util.find_spec = lambda name, *rest: None if 'pgserver' in name else find(name, *rest);"
        "from tailrace.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", hidden, "demo"], check=False, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "pip install 'tailrace[embedded]'" in done.stderr
