"""Child processes that never outlive their parent, and that end with all their descendants.

A child leads a process group of its own. So Ctrl-C on a terminal reaches only the parent, which
then stops its children in order, and descendants of a dead child (such as a JVM) are found by the
group.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)
_START_TICKS = 19
"""The field `starttime` of /proc/PID/stat, counted after the name: ticks since the start of the
machine."""
_CLOCK_S = 1.0
"""How exactly times of files and of processes compare."""
_PROC = Path("/proc")


def die_with_parent(signum: signal.Signals = signal.SIGQUIT, *, parent: int | None = None) -> None:
    """Run in the child: have the kernel (Linux) send `signum` when the parent ends.

    The kernel watches the thread of the parent that forked, so a long-lived thread must start
    children. With `parent`, the child ends at once if that process has already ended.
    """
    with contextlib.suppress(OSError, AttributeError):
        _LIBC.prctl(_PR_SET_PDEATHSIG, signum)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def start(
    command: Sequence[str],
    *,
    share: Sequence[int] = (),
    variables: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a child with the output and the environment of this process, and with these open files
    and variables."""
    parent = os.getpid()
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        pass_fds=share,
        env={**os.environ, **(variables or {})},
        process_group=0,
        preexec_fn=lambda: die_with_parent(signal.SIGTERM, parent=parent),  # noqa: PLW1509
    )


def become(*arguments: str) -> NoReturn:
    """Go on as another command of `tailrace`, in this process and with its environment."""
    os.execv(sys.executable, [sys.executable, "-m", "tailrace.cli", *arguments])  # noqa: S606


def ended(process: subprocess.Popen[bytes]) -> int | None:
    """The exit code of a child that has ended, after killing its group; None while it runs."""
    if process.returncode is None:
        # WNOWAIT leaves the child unreaped: until it is reaped, the kernel gives its process id
        # and the id of its group to no other process.
        if os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return None
        kill(process)
    return process.wait()


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a child that is not reaped yet, and its group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def alive(pid: int, *, wrote_at: float | None = None) -> bool:
    """Whether a process with this id exists, which has written a file at that time (since 1970).

    One that has started later (Linux) has the id of another one by chance: after a restart of the
    machine or of its container, ids begin anew.
    """
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    started_at = _started_at(pid)
    late = wrote_at is not None and started_at is not None and started_at > wrote_at + _CLOCK_S
    return pid > 0 and not late


def _started_at(pid: int) -> float | None:
    """When a process has started, in seconds since 1970; None if that is unknown."""
    try:
        # Its name is in parentheses, and may contain blanks and parentheses.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[_START_TICKS])
        up_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    except (OSError, ValueError, IndexError, AttributeError):
        return None
    return time.time() - up_s + ticks / os.sysconf("SC_CLK_TCK")


def descendants(pid: int, depth: int = 32) -> Iterator[int]:
    """The processes that a process has started, and theirs (Linux)."""
    for path in (_PROC / str(pid) / "task").glob("*/children") if depth else ():
        try:
            children = [int(each) for each in path.read_text().split()]
        except OSError:
            continue
        for child in children:
            yield child
            yield from descendants(child, depth - 1)


def cpu_s(pid: int) -> float | None:
    """The CPU time of a process, in user and kernel mode; None if the kernel does not say.

    The name, the second field of `stat`, may contain spaces and parentheses.
    """
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None
