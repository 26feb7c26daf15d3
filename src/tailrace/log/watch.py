"""Wakes a reader when capture writes the durable mark, so that it need not poll.

Linux tells a process of changes to a file (inotify); Python's library has no interface to it, so
the three calls are made with ctypes. Where they fail, on other systems or with too many watches,
and on shared storage, where another machine writes the mark, a reader polls.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import time
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_POLL_S = 0.005
_MAX_WAIT_S = 0.05
"""A watch misses writes of another machine, and a file that was replaced."""
_IN_MODIFY = 0x2
_EVENTS_BYTES = 4096


class Watch:
    """Waits for writes to one file; without a path it polls."""

    def __init__(self, path: Path | None = None) -> None:
        self._handle = None if path is None else _watch(path)
        self._written = select.poll()
        if self._handle is not None:
            self._written.register(self._handle, select.POLLIN)
            weakref.finalize(self, os.close, self._handle)

    def fileno(self) -> int | None:
        """A descriptor that is readable after a write; None where there is no such thing."""
        return self._handle

    def also(self, descriptor: int) -> None:
        """Return from `wait` when this descriptor is readable as well."""
        self._written.register(descriptor, select.POLLIN)

    def wait(self, timeout_s: float) -> bool:
        """Return after a write since the last call, or after the timeout, or earlier.

        Returns whether there may have been a write.
        """
        if self._handle is None:
            time.sleep(min(timeout_s, _POLL_S))
            return True
        if not self._written.poll(min(timeout_s, _MAX_WAIT_S) * 1000):
            return False
        with contextlib.suppress(BlockingIOError):
            os.read(self._handle, _EVENTS_BYTES)
        return True


def _watch(path: Path) -> int | None:
    """A descriptor that is readable after a write to the file; None if there is no such thing."""
    try:
        library = ctypes.CDLL(None, use_errno=True)
        handle = library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, AttributeError):
        return None
    if handle < 0:
        return None
    if library.inotify_add_watch(handle, os.fsencode(path), _IN_MODIFY) < 0:
        os.close(handle)
        return None
    return int(handle)
