"""A clock that jumps for the processes of a test; the machine's own clock stays as it is."""

from __future__ import annotations

import platform
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

_SOURCE = Path(__file__).with_name("clock.c")


class ShiftedClock:
    """The clock of all processes that run with `env`. Servers without it keep the real one."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None or platform.machine() != "x86_64":
            pytest.skip("needs a C compiler (cc) on x86_64: clock.c shifts the clock of a process")
        library = folder / "clock.so"
        subprocess.run(
            [compiler, "-shared", "-fPIC", "-O2", "-w", "-o", str(library), str(_SOURCE), "-ldl"],
            check=True,
        )
        self._file = folder / "shift"
        self.shift_s = 0
        self._write()
        self.env = {
            "LD_PRELOAD": str(library),
            "SHIFTED_CLOCK": str(self._file),
            # Commands with such a variable are executed; a forked process has no preloaded library.
            "PYTHONUNBUFFERED": "1",
        }

    def jump(self, seconds: int) -> None:
        """Set the clock of the running processes forward, or back."""
        self.shift_s += seconds
        self._write()

    def _write(self) -> None:
        # In place: the processes have mapped the file.
        mode = "r+b" if self._file.exists() else "wb"
        with self._file.open(mode, buffering=0) as file:
            file.write(struct.pack("=q", self.shift_s))
