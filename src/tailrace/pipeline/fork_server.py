"""A process with everything loaded, from which Spark's Python processes are forked.

Spark starts a process to create a source, another one to plan its batches, another one to plan each
reading, and a daemon for the workers. Each imports PySpark, Arrow and Tailrace: half a second of a
core or more, one after the other on the way to the first change. The server imports them once,
while the JVM starts. Then a process takes milliseconds, and shares the memory of the modules.

Spark runs `python.sh` as its interpreter, which runs `forked.py`. That asks the server for a
process with its own arguments, variables, folder and standard files, and waits for its end. If
there is no server, it becomes an ordinary interpreter.

| end of                | what follows                                                     |
|-----------------------|------------------------------------------------------------------|
| the forked process    | the server reports its exit code, and `forked.py` ends with it   |
| `forked.py`           | the server ends the forked process: this is how Spark stops one  |
| the server            | the kernel ends the forked processes                             |
| the process of Spark  | the server ends the forked processes, and itself                 |

The server listens on an abstract Unix socket with a random name, on Linux only. Both sides check
that the other one has the same user.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import marshal
import os
import runpy
import secrets
import selectors
import signal
import socket
import struct
import subprocess
import sys
from dataclasses import dataclass

from tailrace.process import die_with_parent

VARIABLE = "TAILRACE_FORK_SERVER"
"""The name of the socket."""
_MODULES = (
    "tailrace.pipeline.publish",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.streaming.python_streaming_source_runner",
)
_BACKLOG = 128
_REQUEST_S = 60.0
_END_S = 10.0
_PR_SET_NAME = 15
_PEER = struct.Struct("3i")
"""The kernel's `struct ucred`: process, user, group."""
_SIZE = struct.Struct(">I")
_STATUS = struct.Struct(">i")


def start() -> None:
    """Start the server, once for this process. It ends with this process."""
    if sys.platform == "linux" and VARIABLE not in os.environ:
        running = Running()
        os.environ[VARIABLE] = running.name
        atexit.register(running.end)


class Running:
    """A server that runs. It ends when `end` is called, or this process ends."""

    def __init__(self) -> None:
        self.name = f"tailrace-{secrets.token_hex(16)}"
        parent, self._alive = os.pipe()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"\0{self.name}")
            # A request that arrives while the server still imports waits in the backlog.
            listener.listen(_BACKLOG)
            files = listener.fileno(), parent
            self.process = subprocess.Popen(
                [sys.executable, "-m", __name__, *map(str, files)],
                stdin=subprocess.DEVNULL,
                pass_fds=files,
            )
        os.close(parent)

    def end(self) -> None:
        """End the server and the processes that it has forked."""
        os.close(self._alive)
        try:
            self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@dataclass(frozen=True, slots=True)
class Request:
    """A process to fork: arguments of an interpreter, its variables and its folder."""

    arguments: list[str]
    variables: dict[str, str]
    folder: str


class Server:
    """Forks processes, reports their exit codes, and ends those whose `forked.py` has ended."""

    def __init__(self, listener: socket.socket, parent: int) -> None:
        self._listener = listener
        self._parent = parent
        self._lines: dict[int, socket.socket] = {}
        """By the id of the forked process."""
        self._signals, self._wakeup = socket.socketpair()
        self._selector = selectors.DefaultSelector()

    def serve(self) -> Request | None:
        """Returns a request in the process that was forked for it, None when the parent ends."""
        self._wakeup.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)
        for source in (self._listener, self._signals, self._parent):
            self._selector.register(source, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    if (request := self._accept()) is not None:
                        return request
                elif key.fileobj is self._signals:
                    self._signals.recv(4096)
                    self._report_ended()
                elif key.fileobj == self._parent:
                    self._end_all()
                    return None
                elif key.data in self._lines:
                    # `forked.py` has ended, and its process still runs.
                    self._selector.unregister(key.fileobj)
                    _end(key.data)

    def _accept(self) -> Request | None:
        """Fork a process. Returns its request in that process."""
        line, _ = self._listener.accept()
        files: list[int] = []
        try:
            request = _receive(line, files)
            server, pid = os.getpid(), os.fork()
        except (OSError, EOFError, ValueError, TypeError, struct.error):
            for file in (*files, line.detach()):
                os.close(file)
            return None
        if not pid:
            self._leave()
            line.close()
            die_with_parent(signal.SIGTERM, parent=server)
            for target, file in enumerate(files):
                os.dup2(file, target)
        for file in files:
            os.close(file)
        if not pid:
            return request
        self._lines[pid] = line
        self._selector.register(line, selectors.EVENT_READ, pid)
        return None

    def _leave(self) -> None:
        """Close what belongs to the server, in a forked process."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._selector.close()
        os.close(self._parent)
        for each in (self._listener, self._signals, self._wakeup, *self._lines.values()):
            each.close()

    def _report_ended(self) -> None:
        for pid, line in [*self._lines.items()]:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del self._lines[pid]
                with contextlib.suppress(KeyError):
                    self._selector.unregister(line)
                with contextlib.suppress(OSError):
                    line.sendall(_STATUS.pack(os.waitstatus_to_exitcode(status)))
                line.close()

    def _end_all(self) -> None:
        for pid in self._lines:
            _end(pid)


def _end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)


def _receive(line: socket.socket, files: list[int]) -> Request:
    """A request of a process of this user. Adds its standard files to `files`."""
    _, user, _ = _PEER.unpack(line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    if user != os.getuid():
        raise PermissionError
    line.settimeout(_REQUEST_S)
    head, received, _, _ = socket.recv_fds(line, _SIZE.size, 3)
    files += received
    content = bytearray()
    (size,) = _SIZE.unpack(head)
    while len(content) < size:
        if not (piece := line.recv(size - len(content))):
            raise EOFError
        content += piece
    line.settimeout(None)
    return Request(*marshal.loads(content))  # noqa: S302 - of the same user


def _run(request: Request) -> None:
    """Become the module that the request names, as `python -m` does."""
    os.environ.clear()
    os.environ.update(request.variables)
    os.chdir(request.folder)
    added = request.variables.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1:1] = [entry for entry in added if entry and entry not in sys.path]
    _, module, *sys.argv[1:] = request.arguments
    # `ps` shows the arguments of the server; the name at least is its own.
    ctypes.CDLL(None).prctl(_PR_SET_NAME, module.rpartition(".")[2].encode()[:15])
    # Otherwise runpy warns that the module is imported already.
    sys.modules.pop(module, None)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def main() -> None:
    """Load everything, then serve until the process that has started this one ends."""
    from tailrace.pipeline import daemon  # noqa: PLC0415 - for the server alone

    listener, parent = map(int, sys.argv[1:])
    daemon.load(*daemon.MODULES, *_MODULES)
    # Objects that no collection visits are never written to, so their memory stays shared.
    gc.collect()
    gc.freeze()
    request = Server(socket.socket(fileno=listener), parent).serve()
    if request is not None:
        _run(request)


if __name__ == "__main__":
    main()
