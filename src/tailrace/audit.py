"""The audit file: what operators have changed, one JSON document per line.

`audit.jsonl` in the data folder is only ever appended to. The console shows its end. An entry is
written before what it records, so nothing is done without one. On a full disk there is space for
some entries in `audit.reserve`: operators must still be able to drop, unpin and pause.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import orjson

from tailrace import private
from tailrace.errors import DiskFullError
from tailrace.log.store import raise_translated

if TYPE_CHECKING:
    from pathlib import Path

FILE = "audit.jsonl"
_MOST_BYTES = 4 << 20
"""How much of the end is read."""
_RESERVE = "audit.reserve"
_RESERVE_BYTES = 64 << 10
_BLOCK_BYTES = 4 << 10


def record(data: Path, action: str, *, user: str, **facts: Any) -> None:
    """Append an entry, durably. Raises DiskFullError or StorageError, and leaves no part of it.

    >>> from pathlib import Path; from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     record(Path(folder), "parked.retry", user="ann", pipeline="orders", matched=3)
    ...     entry = orjson.loads((Path(folder) / FILE).read_text())
    >>> entry["action"], entry["user"], entry["matched"]
    ('parked.retry', 'ann', 3)
    """
    entry = {"at": datetime.now(UTC), "action": action, "user": user, **facts}
    line = orjson.dumps(entry) + b"\n"
    try:
        _append(data, line)
    except DiskFullError:
        if not _use_reserve(data):
            raise
        _append(data, line)
    else:
        _reserve(data)


def _append(data: Path, line: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    try:
        private.create_folder(data)
        with os.fdopen(os.open(data / FILE, flags, private.FILE_MODE), "ab", 0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            before = file.seek(0, os.SEEK_END)
            try:
                if file.write(line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(file.fileno())
            except OSError:
                # The next entry would be appended to half a line.
                file.truncate(before)
                raise
    except OSError as error:
        raise_translated(error, f"cannot write {data / FILE}")


def _reserve(data: Path) -> None:
    """Have the reserve whole. Without space there is none."""
    path = data / _RESERVE
    with contextlib.suppress(OSError):
        if not path.exists() or path.stat().st_size < _RESERVE_BYTES:
            with private.create_file(path) as file:
                os.posix_fallocate(file.fileno(), 0, _RESERVE_BYTES)


def _use_reserve(data: Path) -> bool:
    """Free a block of the reserve; False if it has none."""
    path = data / _RESERVE
    with contextlib.suppress(OSError):
        if (size := path.stat().st_size) > 0:
            os.truncate(path, max(size - _BLOCK_BYTES, 0))
            return True
    return False


def latest(data: Path, *, limit: int) -> list[dict[str, Any]]:
    """The last entries, the newest first. A line that is not an entry is left out."""
    try:
        with (data / FILE).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - _MOST_BYTES, 0))
            lines = file.read().splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise_translated(error, f"cannot read {data / FILE}")
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
