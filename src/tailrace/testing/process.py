"""Embedded servers as child processes that never outlive their parent.

Each server is one child process with its own folder. It stops with its context manager, at exit of
the interpreter, and, on Linux, when the parent is killed.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import weakref
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, Self

_OWN_PORTS = range(10_000, 32_000)
_PORT_SHARES = 8
_issued: set[int] = set()
_LONGEST_ROOT = 40


class Server(ABC):
    """One server: `start`, `stop`, `kill`; or a context manager."""

    stop_signal: ClassVar = signal.SIGTERM
    kill_signal: ClassVar = signal.SIGKILL
    stop_s: ClassVar[float] = 15.0
    """Max seconds for an orderly stop."""
    known: ClassVar[weakref.WeakSet[Server]] = weakref.WeakSet()
    """The servers of this process, so that a failed test can show their logs."""

    def __init__(self, prefix: str, owner: pwd.struct_passwd | None = None) -> None:
        self.folder = private_folder(prefix, owner)
        self.log_file = self.folder / "server.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.known.add(self)
        atexit.register(self.destroy)

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The running server."""
        if self._process is None:
            raise RuntimeError(f"the {type(self).__name__} is not running")
        return self._process

    def recent_log(self, chars: int = 3000) -> str:
        """The end of the server's log, after a line that says whether it runs."""
        running = self._process is not None and self._process.poll() is None
        try:
            text = self.log_file.read_text(errors="replace")[-chars:]
        except OSError:
            text = ""
        return f"{'running' if running else 'not running'}\n{text}"

    @abstractmethod
    def start(self) -> Self:
        """Start the server and wait until it serves clients."""

    def stop(self) -> None:
        """Stop in an orderly way; the data stays on disk for the next `start`."""
        self._end(self.stop_signal, self.stop_s)

    def kill(self) -> None:
        """Crash the server: all of its processes end at once."""
        self._end(self.kill_signal, 10)

    def _end(self, how: signal.Signals, timeout_s: float) -> None:
        process, self._process = self._process, None
        end(process, how, timeout_s=timeout_s, at_last=self.kill_signal)

    def restart(self) -> None:
        """Stop in an orderly way and start again on the same port."""
        self.stop()
        self.start()

    def destroy(self) -> None:
        """Kill the server and remove its folder."""
        self.kill()
        remove(self.folder)
        atexit.unregister(self.destroy)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.destroy()


def free_port() -> int:
    """A TCP port on loopback that is free now and probably until the server has started.

    The kernel assigns ports above this range to clients that bind port 0, so those could be taken
    by then. Workers of pytest have shares of their own; other processes choose at random.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % _PORT_SHARES
    own = _OWN_PORTS[worker::_PORT_SHARES]
    while True:
        port = secrets.choice(own)
        if port in _issued:
            continue
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            _issued.add(port)
            return port


def private_folder(prefix: str, owner: pwd.struct_passwd | None) -> Path:
    """A new folder owned by `owner`, in TMPDIR or /tmp.

    TMPDIR is used if `owner` can enter it and its path is short: a Unix socket's name has a limit.
    """
    root = Path(tempfile.gettempdir())
    fits = len(str(root)) <= _LONGEST_ROOT and (owner is None or reachable_by(root, owner))
    if not fits and Path("/tmp").is_dir():  # noqa: S108
        root = Path("/tmp")  # noqa: S108
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=root))
    if owner is not None:
        os.chown(folder, owner.pw_uid, owner.pw_gid)
    return folder


def unprivileged_user() -> pwd.struct_passwd | None:
    """The user to run a server as if this process runs as root, else None."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise RuntimeError("PostgreSQL refuses to run as root; create a user `postgres` or `nobody`")


def reachable_by(path: Path, user: pwd.struct_passwd) -> bool:
    """Whether `user` may enter every folder of `path`."""
    for folder in [path, *path.resolve().parents]:
        status = folder.stat()
        bits = status.st_mode >> (6 if status.st_uid == user.pw_uid else 0)
        if not bits & 0o001:
            return False
    return True


def end(
    process: subprocess.Popen[bytes] | None,
    how: signal.Signals,
    *,
    timeout_s: float,
    at_last: signal.Signals,
) -> None:
    """Signal a child to end; after the timeout send the last signal."""
    if process is None or process.poll() is not None:
        return
    process.send_signal(how)
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.send_signal(at_last)
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def freeze(pid: int) -> None:
    """Stop all threads of a process until SIGCONT. Returns when they have stopped.

    A thread that waits for a core may otherwise still run for a moment.
    """
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        os.kill(pid, signal.SIGSTOP)
        while not all(_is_stopped(stat) for stat in Path(f"/proc/{pid}/task").glob("*/stat")):
            time.sleep(0.005)


def _is_stopped(stat: Path) -> bool:
    try:
        state = stat.read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in "TtZX"


def remove(folder: Path) -> None:
    """Delete the folder of a server; ignores files that cannot be removed."""
    shutil.rmtree(folder, ignore_errors=True)
