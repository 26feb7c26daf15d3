"""Processes of the fork server behave as those that Spark would start."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tailrace.pipeline import fork_server
from tailrace.testing.process import freeze
from tests.waiting import LONG_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

SCRIPT = Path(fork_server.__file__).with_name("python.sh")
PROGRAM = """
import json, os, sys
given = sys.stdin.read()
print(json.dumps([sys.argv[1:], given, os.environ["COLOUR"], os.getcwd(), os.getppid()]))
print("an error", file=sys.stderr)
sys.exit(7)
"""
WAIT = "import time; print('begun', flush=True); time.sleep(1000)"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="abstract sockets are Linux's")


@pytest.fixture(scope="module")
def server() -> Iterator[fork_server.Running]:
    running = fork_server.Running()
    yield running
    running.end()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two modules that Spark may be asked to run."""
    (tmp_path / "fork_test_program.py").write_text(PROGRAM)
    (tmp_path / "fork_test_waiting.py").write_text(WAIT)
    return tmp_path


def start(folder: Path, name: str, *arguments: str) -> subprocess.Popen[str]:
    """What Spark does to start a Python process."""
    variables = {
        "TAILRACE_PYTHON": sys.executable,
        "PYTHONPATH": f"/opt/spark/python/lib/pyspark.zip:{folder}",
        "COLOUR": "blue",
        fork_server.VARIABLE: name,
    }
    return subprocess.Popen(
        [SCRIPT, *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        cwd=folder, env=variables, text=True,
    )  # fmt: skip


def children(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children()


def waiting(folder: Path, server: fork_server.Running) -> tuple[subprocess.Popen[str], int]:
    """A forked process that has begun: the process that requested it, and its id."""
    asked = start(folder, server.name, "-m", "fork_test_waiting")
    assert asked.stdout is not None
    assert asked.stdout.readline() == "begun\n"
    [forked] = children(server.process.pid)
    return asked, forked.pid


def test_it_has_its_own_arguments_variables_folder_and_files(
    server: fork_server.Running, folder: Path
) -> None:
    done = start(folder, server.name, "-m", "fork_test_program", "a b", "c")
    output, errors = done.communicate("input", LONG_S)
    assert json.loads(output) == [["a b", "c"], "input", "blue", str(folder), server.process.pid]
    assert (errors, done.returncode) == ("an error\n", 7)


def test_an_interpreter_without_a_server(folder: Path) -> None:
    done = start(folder, "tailrace-nobody", "-m", "fork_test_program")
    output, errors = done.communicate("input", LONG_S)
    assert json.loads(output) == [[], "input", "blue", str(folder), os.getpid()]
    assert (errors, done.returncode) == ("an error\n", 7)


def test_other_arguments_are_for_an_interpreter(server: fork_server.Running, folder: Path) -> None:
    done = start(folder, server.name, "-c", "import os; print(os.getppid())")
    assert done.communicate(timeout=LONG_S) == (f"{os.getpid()}\n", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_it_ends_with_the_process_that_requested_it(
    server: fork_server.Running, folder: Path, number: signal.Signals
) -> None:
    asked, forked = waiting(folder, server)
    with asked:
        asked.send_signal(number)
        assert asked.wait(LONG_S) == -number
    wait_for(lambda: not psutil.pid_exists(forked), "its end")


def test_the_end_of_a_killed_process_is_reported(server: fork_server.Running, folder: Path) -> None:
    asked, forked = waiting(folder, server)
    with asked:
        os.kill(forked, signal.SIGKILL)
        assert asked.wait(LONG_S) == 128 + signal.SIGKILL


def test_both_ends_at_the_same_time(server: fork_server.Running, folder: Path) -> None:
    """The server learns of both at once, and goes on."""
    asked, forked = waiting(folder, server)
    with asked:
        freeze(server.process.pid)
        os.kill(forked, signal.SIGKILL)
        asked.kill()
        asked.wait(LONG_S)
        server.process.send_signal(signal.SIGCONT)
    wait_for(lambda: not psutil.pid_exists(forked), "its end")
    done = start(folder, server.name, "-m", "fork_test_program")
    assert json.loads(done.communicate("", LONG_S)[0])[-1] == server.process.pid


@pytest.mark.parametrize("kill", [True, False])
def test_nothing_outlives_the_server(folder: Path, kill: bool) -> None:
    server = fork_server.Running()
    asked, forked = waiting(folder, server)
    with asked:
        if kill:
            server.process.kill()
        server.end()
        wait_for(lambda: not psutil.pid_exists(forked), "the end of the process")
        assert asked.wait(LONG_S) != 0


def test_the_server_ends_with_the_process_that_started_it(folder: Path) -> None:
    """GIVEN a process that is killed THEN its server ends."""
    script = (
        "import sys, time; from tailrace.pipeline import fork_server; "
        "print(fork_server.Running().process.pid, flush=True); time.sleep(1000)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        server = int(owner.stdout.readline())
        owner.kill()
        wait_for(lambda: not psutil.pid_exists(server), "the end of the server")


@pytest.mark.parametrize("request_", [b"", b"\0\0\0\x05abc", b"\0\0\0\x04abcd", b"\0"])
def test_malformed_requests_are_dropped(
    server: fork_server.Running, folder: Path, request_: bytes
) -> None:
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(f"\0{server.name}")
        line.sendall(request_)
        line.shutdown(socket.SHUT_WR)
        assert line.recv(1) == b""
    done = start(folder, server.name, "-m", "fork_test_program")
    assert done.communicate("", LONG_S)[1] == "an error\n"


ASK = """
import marshal, os, socket, struct, sys
os.setuid(int(sys.argv[2]))
line = socket.socket(socket.AF_UNIX)
line.connect("\\0" + sys.argv[1])
content = marshal.dumps((["-m", "fork_test_program"], {"PYTHONPATH": sys.argv[3]}, "/"))
try:
    socket.send_fds(line, [struct.pack(">I", len(content))], [0, 1, 2])
    line.sendall(content)
    print(line.recv(4))
except OSError:
    print("closed")
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root may act as another user")
@pytest.mark.parametrize(("user", "served"), [(0, True), (65534, False)])
def test_other_users_are_refused(
    server: fork_server.Running, folder: Path, user: int, served: bool
) -> None:
    """The program fails for lack of a variable, with exit code 1."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", ASK, server.name, str(user), folder],
        capture_output=True, text=True, timeout=LONG_S, check=True,
    )  # fmt: skip
    assert ("KeyError" in done.stderr) is served
    assert (r"b'\x00\x00\x00\x01'" in done.stdout) is served
