"""Child processes that never outlive their owner, and that end with everything they started.

A child leads a process group of its own: Ctrl-C on a terminal reaches the owner alone, which then
stops its children in order, and what a dead child left behind (a JVM, say) is found by the group.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


def die_with_parent(signum: signal.Signals = signal.SIGQUIT, *, parent: int | None = None) -> None:
    """Run in the child: ask the kernel (Linux) for `signum` when the parent is gone.

    The kernel watches the parent's thread that forked, so children are started by a thread that
    lives as long as they may. With `parent`, one that is gone already is noticed as well.
    """
    with contextlib.suppress(OSError, AttributeError):
        _LIBC.prctl(_PR_SET_PDEATHSIG, signum)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def start(command: Sequence[str], *, share: Sequence[int] = ()) -> subprocess.Popen[bytes]:
    """Start a child that shares our output, our environment and these open files."""
    parent = os.getpid()
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        pass_fds=share,
        process_group=0,
        preexec_fn=lambda: die_with_parent(signal.SIGTERM, parent=parent),  # noqa: PLW1509
    )


def ended(process: subprocess.Popen[bytes]) -> int | None:
    """The exit code of a child that has ended, once all of its group is gone too; else None."""
    if process.returncode is None:
        # Not reaped yet: until then nobody else can be given its id, nor the id of its group.
        found = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None:
            return None
        kill(process)
    return process.wait()


def kill(process: subprocess.Popen[bytes]) -> None:
    """End a child that is not reaped yet, with all of its group, at once."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def alive(pid: int) -> bool:
    """Whether there is a process of that id."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return pid > 0
