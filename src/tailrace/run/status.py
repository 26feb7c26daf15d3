"""Status files: what each process says about itself, in `DATA/status/<process>.json`.

A process writes its file about every second, whole or not at all. `tailrace serve` reads them, and
so may anything else. A file is believed while it is young and its writer lives; after that it still
tells how the process ended. `tailrace run` makes the folder: a process that runs alone, without it,
writes nothing. Writing never fails a process: what a full disk does to the log matters, and is
told elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import orjson

from tailrace.process import alive

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

EVERY_S = 1.0
STALE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A process's last words. `fields` is the file's content, whatever its writer put there."""

    up: bool
    fields: Mapping[str, Any]

    @property
    def state(self) -> str:
        """What the process says of itself, while it can; how it ended if that has a code."""
        said = str(self.fields.get("state", ""))
        return said if self.up or said.isupper() else "down"


def folder(data: Path) -> Path:
    """Where the status files of a data folder are."""
    return data / "status"


def write(where: Path, process: str, fields: Mapping[str, object]) -> None:
    """Replace a process's file, with its pid and the time added."""
    said = {"pid": os.getpid(), "time": datetime.now(UTC).isoformat(), **fields}
    temporary = where / f"{process}.json.{os.getpid()}.tmp"
    with contextlib.suppress(OSError):
        temporary.write_bytes(orjson.dumps(said))
        temporary.replace(where / f"{process}.json")


def read(where: Path, process: str, *, now: float | None = None) -> Report | None:
    """A process's file; None when there is none, or nothing in it that can be read."""
    path = where / f"{process}.json"
    try:
        age_s = (time.time() if now is None else now) - path.stat().st_mtime
        fields = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return None
    if not isinstance(fields, dict):
        return None
    pid = fields.get("pid")
    return Report(up=age_s <= STALE_S and isinstance(pid, int) and alive(pid), fields=fields)


def clear(where: Path) -> None:
    """Make the folder and forget what an earlier run said."""
    where.mkdir(parents=True, exist_ok=True)
    for path in (*where.glob("*.json"), *where.glob("*.tmp")):
        path.unlink(missing_ok=True)


class Reporter:
    """Writes a process's status every second from a thread of its own, until closed."""

    def __init__(
        self, where: Path, process: str, fields: Callable[[], Mapping[str, object]]
    ) -> None:
        self._where = where
        self._process = process
        self._fields = fields
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="status", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            self.write()
            if self._closing.wait(EVERY_S):
                return

    def write(self) -> None:
        """Write now."""
        write(self._where, self._process, self._fields())

    def close(self) -> None:
        """End the thread, and write what is true at the end."""
        self._closing.set()
        self._thread.join()
        self.write()
