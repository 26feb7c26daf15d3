"""A small disk of its own that a test can fill: a tmpfs, which the kernel limits."""

from __future__ import annotations

import contextlib
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_PAGE_BYTES = 4096


class Disk:
    """A mounted file system."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # The name of a temporary file: no component takes it for one of its own.
        self._ballast = folder / "ballast.tmp"

    @property
    def free_bytes(self) -> int:
        found = os.statvfs(self.folder)
        return found.f_bavail * found.f_frsize

    def fill(self, *, leave_bytes: int = 0) -> None:
        """Take all space but so much, also what others release meanwhile."""
        with self._ballast.open("ab") as file, contextlib.suppress(OSError):
            while self.free_bytes > leave_bytes:
                size = min(self.free_bytes - leave_bytes, 1 << 20)
                file.write(b"\0" * max(size, _PAGE_BYTES))
                file.flush()

    def empty(self) -> None:
        """Release what `fill` took."""
        self._ballast.unlink()

    def resize(self, size: str) -> None:
        """Change the size, for example to 64m."""
        options = f"remount,size={size}"
        subprocess.run(["mount", "-o", options, str(self.folder)], check=True)


@contextlib.contextmanager
def mounted(folder: Path, size: str) -> Iterator[Disk]:
    """A disk of this size at a folder; skips the test where mounting is not permitted."""
    folder.mkdir(parents=True)
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if mount.returncode != 0:
        pytest.skip(f"cannot mount a small file system here: {mount.stderr.decode().strip()}")
    try:
        yield Disk(folder)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
