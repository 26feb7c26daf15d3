"""Locks of files that several threads and processes read, change and write.

Two orders of operators may come at once: from the console, a command and a program. For the lock
that allows one `tailrace run` per data folder, see `tailrace.run.lock`.
"""

from __future__ import annotations

import contextlib
import fcntl
from typing import TYPE_CHECKING

from tailrace import private
from tailrace.log.store import raise_translated

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Wait for the lock, hold it, and release it. `path` is a file that has no other use."""
    try:
        private.create_folder(path.parent)
        file = private.create_file(path)
    except OSError as error:
        raise_translated(error, f"cannot lock {path}")
    with file:
        # The kernel releases it when the process ends, also when it is killed.
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
