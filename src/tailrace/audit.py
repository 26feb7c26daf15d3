"""The audit file: what operators have changed, one JSON document per line.

`audit.jsonl` in the data folder is only ever appended to. The console shows its end.
"""

from __future__ import annotations

import fcntl
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import orjson

from tailrace import private

if TYPE_CHECKING:
    from pathlib import Path

FILE = "audit.jsonl"
_MOST_BYTES = 4 << 20
"""How much of the end is read."""


def record(data: Path, action: str, *, user: str, **facts: Any) -> None:
    """Append an entry, durably.

    >>> from pathlib import Path; from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     record(Path(folder), "parked.retry", user="ann", pipeline="orders", matched=3)
    ...     entry = orjson.loads((Path(folder) / FILE).read_text())
    >>> entry["action"], entry["user"], entry["matched"]
    ('parked.retry', 'ann', 3)
    """
    entry = {"at": datetime.now(UTC), "action": action, "user": user, **facts}
    private.create_folder(data)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    with os.fdopen(os.open(data / FILE, flags, private.FILE_MODE), "ab", 0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(orjson.dumps(entry) + b"\n")
        os.fsync(file.fileno())


def latest(data: Path, *, limit: int) -> list[dict[str, Any]]:
    """The last entries, the newest first. A line that is not an entry is left out."""
    try:
        with (data / FILE).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - _MOST_BYTES, 0))
            lines = file.read().splitlines()
    except FileNotFoundError:
        return []
    entries: list[dict[str, Any]] = []
    for line in reversed(lines):
        if len(entries) == limit:
            break
        try:
            entry = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        if isinstance(entry, dict):
            entries.append(entry)
    return entries
