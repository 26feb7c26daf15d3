"""Whose turn it is to write to a file: SQLite and DuckDB take one writer at a time.

Mirrors of several tables into one file wait for each other here, as long as a bootstrap takes,
rather than for a lock of the file, which gives up after a while.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_LOCKS: dict[Path, threading.Lock] = {}
_REGISTRY = threading.Lock()


class FileLock:
    """One writer of a file. `take` and `give` may be called any number of times."""

    def __init__(self, path: Path) -> None:
        with _REGISTRY:
            self._lock = _LOCKS.setdefault(path.resolve(), threading.Lock())
        self._mine = False

    def take(self) -> None:
        """Wait for the others."""
        if not self._mine:
            self._lock.acquire()
            self._mine = True

    def give(self) -> None:
        """Let the others."""
        if self._mine:
            self._mine = False
            self._lock.release()
