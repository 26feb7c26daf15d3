"""The locks of a data folder: at most one `tailrace run` and one `tailrace pipelines` per folder.

The supervisor's processes inherit its lock. The kernel releases it when the last of them has ended,
so a new supervisor waits for processes that outlived the old one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from typing import TYPE_CHECKING, TextIO

from tailrace import private, process
from tailrace.errors import AlreadyRunningError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_WAIT_S = 60.0
"""How long the processes of a dead supervisor may take to end."""
_POLL_S = 0.05
_OWNER_BYTES = 16


@contextlib.contextmanager
def data_folder_lock(
    where: Path, command: str = "run", *, clock: Callable[[], float] = time.monotonic
) -> Iterator[int]:
    """Hold the lock of a command; its file descriptor. Raises AlreadyRunningError."""
    try:
        private.create_folder(where)
        path = where / f"{command}.lock"
        path.touch()
        lock = path.open("r+")
    except OSError as error:
        raise StorageError(f"cannot use {where}: {error.strerror}") from error
    with lock:
        deadline = clock() + _WAIT_S
        while not _acquire(lock):
            if _owner_runs(lock) or clock() > deadline:
                raise AlreadyRunningError(
                    f"`tailrace {command}` already uses the data folder {where.parent}",
                    hint="Stop it first, or set `data` to another folder.",
                )
            time.sleep(_POLL_S)
        _write_owner(lock.fileno())
        yield lock.fileno()


def _write_owner(lock: int) -> None:
    """Write who holds the lock, over who held it. It is for messages: a full disk has to do."""
    with contextlib.suppress(OSError):
        os.pwrite(lock, f"{os.getpid()}\n".ljust(_OWNER_BYTES).encode(), 0)


def _acquire(lock: TextIO) -> bool:
    try:
        fcntl.flock(lock.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _owner_runs(lock: TextIO) -> bool:
    """Whether the supervisor itself still runs, not only processes that it has left."""
    lock.seek(0)
    pid = lock.read().strip()
    return not pid.isdecimal() or process.alive(int(pid))
