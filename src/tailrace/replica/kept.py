"""What a copy has removed from its log, in files of the folder `cut` beside the segments.

    SEGMENT.OFFSET.EPOCH   what a deposed leader wrote, and no other log has; for an operator
    SEGMENT.damaged        a last segment that cannot be read, until the copy has its bytes again

Each file is durable before the log is changed. A name has no time, so that a repeated attempt, for
example on a full disk, replaces the file of the one before.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tailrace import private
from tailrace.log.store import raise_translated, sync_folder, write_all
from tailrace.observe import failpoint

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tailrace.log.format.mark import Mark
    from tailrace.log.format.segment import SegmentName
    from tailrace.log.store import LocalStore

_DAMAGED = ".damaged"
_TEMPORARY = ".tmp"
_COPY_BYTES = 1 << 20


def folder_of(store: LocalStore) -> Path:
    """The folder of what was removed."""
    return store.folder / "cut"


def keep_cut(store: LocalStore, name: SegmentName, start: int, epoch: int) -> None:
    """Keep a segment from an offset on. Raises DiskFullError."""
    _keep(store, name, start, f"{name.file}.{start}.{epoch}")


def keep_damaged(store: LocalStore, name: SegmentName) -> None:
    """Keep a segment that cannot be read, unless that was done before it was cut.

    Raises DiskFullError.
    """
    target = folder_of(store) / f"{name.file}{_DAMAGED}"
    if not target.exists() or target.stat().st_size < store.size(name.file):
        _keep(store, name, 0, target.name)


def has_damaged(store: LocalStore) -> bool:
    """Whether there is a segment that was not readable."""
    return any(_damaged(store))


def drop_damaged(store: LocalStore, mark: Mark) -> bool:
    """Remove those whose bytes the copy has again. Whether others are left."""
    for path in list(_damaged(store)):
        if (int(path.name.partition("-")[0]), path.stat().st_size) <= mark.place:
            try:
                path.unlink()
            except OSError as error:
                raise_translated(error, f"cannot remove {path.name}")
    return has_damaged(store)


def bytes_kept(store: LocalStore) -> int:
    """The size of all files."""
    return sum(path.stat().st_size for path in folder_of(store).glob("*"))


def _damaged(store: LocalStore) -> Iterator[Path]:
    return folder_of(store).glob(f"*{_DAMAGED}")


def _keep(store: LocalStore, name: SegmentName, start: int, target: str) -> None:
    if store.size(name.file) <= start:
        return
    folder = folder_of(store)
    temporary = folder / f"{target}{_TEMPORARY}"
    try:
        private.create_folder(folder)
        try:
            with private.create_file(temporary, buffering=0) as file:
                failpoint.hit("replica.keep")
                at = start
                while content := store.read(name.file, at, _COPY_BYTES):
                    at += write_all(file.fileno(), [content])
                os.fsync(file.fileno())
            temporary.rename(folder / target)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(folder)
        sync_folder(store.folder)
    except OSError as error:
        raise_translated(error, f"cannot keep what is cut of {name.file}")
