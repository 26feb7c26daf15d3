"""One writer per file: SQLite and DuckDB allow one writing transaction at a time.

Mirrors of several tables into one file wait for this lock, for as long as a bootstrap takes. The
lock of the database itself times out. The lock is for the threads of one process.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_LOCKS: dict[Path, threading.Lock] = {}
_LOCKS_GUARD = threading.Lock()


class FileLock:
    """The lock of one file. `acquire` and `release` may be called more than once in a row."""

    def __init__(self, path: Path) -> None:
        with _LOCKS_GUARD:
            self._lock = _LOCKS.setdefault(path.resolve(), threading.Lock())
        self._held = False

    def acquire(self) -> None:
        """Wait for the lock, unless it is held."""
        if not self._held:
            self._lock.acquire()
            self._held = True

    def release(self) -> None:
        """Release the lock, if it is held."""
        if self._held:
            self._held = False
            self._lock.release()
