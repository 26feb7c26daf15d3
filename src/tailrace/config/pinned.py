"""The settings file as `tailrace run` has loaded it, for the processes that it starts.

A process that is restarted after a crash must not read a file that is being edited, or whose change
was not applied. So the supervisor keeps the content in memory (Linux: a memfd), and its processes
inherit that. It is never on a disk: it may have secrets.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

VARIABLE = "TAILRACE_PINNED_SETTINGS"
"""`FD:PATH`: the file descriptor that has the content of a settings file."""
_NAME = "tailrace-settings"


class Pin:
    """The content of a settings file, to be inherited. Elsewhere than on Linux it has no effect."""

    def __init__(self, path: Path, content: bytes) -> None:
        self._fd: int | None = None
        self.variables: dict[str, str] = {}
        """The environment of a process that shall read this content."""
        if hasattr(os, "memfd_create"):
            self._fd = os.memfd_create(_NAME)
            with os.fdopen(os.dup(self._fd), "wb") as file:
                file.write(content)
            self.variables = {VARIABLE: f"{self._fd}:{path}"}

    @property
    def share(self) -> tuple[int, ...]:
        """The file descriptors that such a process inherits."""
        return () if self._fd is None else (self._fd,)

    def close(self) -> None:
        """Free the memory, after processes have inherited it."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd, self.variables = None, {}


def pinned(path: Path) -> bytes | None:
    """The content of a settings file that this process has inherited; None if it has not."""
    fd, _, pinned_path = os.environ.get(VARIABLE, "").partition(":")
    if pinned_path != str(path) or not fd.isdecimal():
        return None
    with contextlib.suppress(OSError):
        # A descendant has the variable, and may have another file under this number.
        if str(Path(f"/proc/self/fd/{fd}").readlink()).startswith(f"/memfd:{_NAME}"):
            return os.pread(int(fd), os.fstat(int(fd)).st_size, 0)
    return None
