"""How far followers have the small state of a pipeline: their leader notes it, tasks wait for it.

A sink that stores its own position skips what is before it, after a takeover as after a crash. What
was parked before that position is then nowhere but in the small state. So in mode `sync` a task
waits until followers have what it parks, before such a sink may go on.

`DATA/replicated/PIPELINE` holds the machine's boot and a time of its monotonic clock: what was
written before that is on the followers. A write to `DATA/replicated/.wanted` wakes the leader.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tailrace import private

if TYPE_CHECKING:
    from collections.abc import Callable

WANTED = ".wanted"
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_POLL_S = 0.005
_ASK_EVERY_S = 0.1


def folder_of(data: Path) -> Path:
    """Where the notes are."""
    return data / "replicated"


@cache
def _boot() -> str:
    # The monotonic clock begins anew with each boot.
    return _BOOT.read_text().strip() if _BOOT.exists() else "-"


@dataclass(frozen=True, slots=True)
class Replicated:
    """The note of one pipeline."""

    folder: Path
    pipeline: str

    def note(self, at_ns: int) -> None:
        """Followers have everything that was written before a time. One thread notes."""
        private.create_folder(self.folder)
        temporary = self.folder / f"{self.pipeline}.tmp"
        temporary.write_text(f"{_boot()} {at_ns}")
        temporary.replace(self.folder / self.pipeline)

    def noted_ns(self) -> int:
        """The time up to which followers have everything; 0 if it is unknown."""
        try:
            boot, _, text = (self.folder / self.pipeline).read_text().partition(" ")
            return int(text) if boot == _boot() else 0
        except (FileNotFoundError, ValueError):
            return 0

    def wait(self, check: Callable[[], None]) -> None:
        """Return when followers have everything that was written before. `check` may raise."""
        since, ask_at = time.monotonic_ns(), 0.0
        while self.noted_ns() < since:
            check()
            if time.monotonic() >= ask_at:
                ask_at = time.monotonic() + _ASK_EVERY_S
                self._ask()
            time.sleep(_POLL_S)

    def _ask(self) -> None:
        # Without the file, the leader does not run yet, or begins its next round soon.
        with contextlib.suppress(FileNotFoundError), (self.folder / WANTED).open("r+b", 0) as file:
            os.pwrite(file.fileno(), b"x", 0)
