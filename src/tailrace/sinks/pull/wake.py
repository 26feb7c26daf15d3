"""Tells the HTTP server that the store has new messages: a byte in a file, which it watches."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tailrace.log.watch import Watch
from tailrace.private import FILE_MODE

if TYPE_CHECKING:
    from pathlib import Path

_FILE = "pull.wake"


class Bell:
    """Wakes those that watch the store of a folder."""

    def __init__(self, folder: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        self._handle = os.open(folder / _FILE, flags, FILE_MODE)

    def ring(self) -> None:
        """Wake them."""
        os.pwrite(self._handle, b"\n", 0)

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)


def watch(folder: Path) -> Watch:
    """Waits for the bell of a folder, whose store exists."""
    Bell(folder).close()
    return Watch(folder / _FILE)
