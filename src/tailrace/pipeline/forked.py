"""Runs the arguments of an interpreter in a process of the fork server, and waits for its end.

`python.sh` executes this file in a bare interpreter (`-I -S`), which starts in a fifth of the time
of a complete one. So it imports nothing of Tailrace; `tailrace.pipeline.fork_server` is its other
side.
"""

from __future__ import annotations

import marshal
import os
import signal
import socket
import struct
import sys


def main() -> None:
    """Ask the server; without one, become an ordinary interpreter."""
    arguments = sys.argv[1:]
    line = _connect() if arguments[:1] == ["-m"] else None
    if line is None:
        os.execv(sys.executable, [sys.executable, *arguments])  # noqa: S606 - Spark's arguments
    # pathlib would take as long to import as all of this.
    content = marshal.dumps((arguments, dict(os.environ), os.getcwd()))  # noqa: PTH109
    socket.send_fds(line, [struct.pack(">I", len(content))], [0, 1, 2])
    line.sendall(content)
    # A signal ends this process, and with it the other one.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    status = line.recv(4)
    (code,) = struct.unpack(">i", status) if len(status) == 4 else (1,)
    os._exit(code if code >= 0 else 128 - code)


def _connect() -> socket.socket | None:
    line = socket.socket(socket.AF_UNIX)
    try:
        line.connect("\0" + os.environ["TAILRACE_FORK_SERVER"])
        peer = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    except OSError:
        return None
    return line if struct.unpack("3i", peer)[1] == os.getuid() else None


if __name__ == "__main__":
    main()
