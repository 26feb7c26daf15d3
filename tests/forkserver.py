"""Starts `tailrace` commands by forking a process that has imported everything.

The tests start a thousand commands, and most of the time of a short one goes into imports. Each
command is a process of its own all the same, with its own arguments, variables, folder and files.
Commands that Tailrace itself starts, and those with a prefix, are executed as users execute them.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import tailrace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_LARGEST_REQUEST = 1 << 17
_NOT_IMPORTED = (
    "tailrace.pipeline",
    "tailrace.testing",
    "tailrace.cli.demo",
    "tailrace.mirror.targets",
)
"""Spark is too large, and DuckDB prints what it has not released as a process ends."""


@dataclass
class Forked:
    """A command that runs, with what the tests use of `subprocess.Popen`."""

    args: Sequence[str]
    pid: int
    _status: socket.socket
    returncode: int | None = field(default=None)

    def poll(self) -> int | None:
        return self._read(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._read(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _read(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            text = self._status.recv(100)
            self._status.close()
            self.returncode = int(text) if text else -signal.SIGKILL
        return self.returncode


def fork(
    arguments: Sequence[str],
    *,
    env: Mapping[str, str],
    folder: Path | None,
    files: tuple[int, int, int],
) -> Forked:
    """Start `tailrace` with these arguments; `files` are its standard input, output and errors."""
    words = ["tailrace", *arguments]
    request = json.dumps({"words": words, "env": dict(env), "folder": str(folder or Path.cwd())})
    status, remote = socket.socketpair()
    line = _server()
    with remote:
        socket.send_fds(line, [request.encode()], [*files, remote.fileno()])
    pid = line.recv(100)
    assert pid, "the fork server has ended"
    return Forked(words, int(pid), status)


@cache
def _server() -> socket.socket:
    line, remote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with remote:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.forkserver", str(remote.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[remote.fileno()],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )

    def end() -> None:
        line.close()
        process.wait()

    atexit.register(end)
    return line


def main() -> None:
    """Serve requests until the tests end."""
    line = socket.socket(fileno=int(sys.argv[1]))
    for module in pkgutil.walk_packages(tailrace.__path__, "tailrace."):
        if not module.name.startswith(_NOT_IMPORTED) and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    # The collector would write to the pages that the processes share.
    gc.freeze()
    ended, wakeup = socket.socketpair()
    wakeup.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.set_wakeup_fd(wakeup.fileno(), warn_on_full_buffer=False)
    children: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([line, ended], [], [])
        if ended in ready:
            ended.recv(1000)
            _report_ended(children)
        if line in ready:
            text, files, _, _ = socket.recv_fds(line, _LARGEST_REQUEST, 4)
            if not text:
                return
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                for each in (line.detach(), ended.detach(), wakeup.detach(), files.pop()):
                    os.close(each)
                for each in children.values():
                    os.close(each)
                _run(json.loads(text), files)
            *standard, children[pid] = files
            for each in standard:
                os.close(each)
            line.send(str(pid).encode())


def _report_ended(children: dict[int, int]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with contextlib.suppress(OSError):
            os.write(children[pid], str(os.waitstatus_to_exitcode(status)).encode())
        os.close(children.pop(pid))


def _run(request: dict[str, Any], files: list[int]) -> NoReturn:
    """Be the process of a command."""
    from tailrace.cli import main as run  # noqa: PLC0415
    from tailrace.observe import failpoint  # noqa: PLC0415

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, each in enumerate(files):
        os.dup2(each, number)
        os.close(each)
    os.chdir(request["folder"])
    sys.argv = request["words"]
    os.environ.clear()
    os.environ.update(request["env"])
    failpoint.configure(os.environ.get("TAILRACE_FAILPOINTS", ""))
    code: Any = 1
    try:
        run()
        code = 0
    except SystemExit as ended:
        code = ended.code or 0
    except BaseException:
        traceback.print_exc()
    # As the interpreter ends, without releasing a thousand modules first.
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
