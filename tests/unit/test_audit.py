"""The audit file on a full disk, and one of another user."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from tailrace import audit
from tailrace.errors import DiskFullError, StorageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class Disk:
    """A disk with so many free bytes; half an entry is written where it ends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, data: Path) -> None:
        self.data = data
        self.free = 1 << 30
        self._fsync, self._truncate = os.fsync, os.truncate
        monkeypatch.setattr(os, "fsync", self.fsync)
        monkeypatch.setattr(os, "truncate", self.truncate)
        monkeypatch.setattr(os, "posix_fallocate", self.fallocate)

    def fsync(self, descriptor: int) -> None:
        if self.free <= 0:
            os.ftruncate(descriptor, os.fstat(descriptor).st_size - 5)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._fsync(descriptor)

    def truncate(self, path: Path, size: int) -> None:
        self.free += path.stat().st_size - size
        self._truncate(path, size)

    def fallocate(self, descriptor: int, offset: int, size: int) -> None:
        if self.free < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.ftruncate(descriptor, offset + size)


def actions(data: Path) -> Sequence[str]:
    return [each["action"] for each in reversed(audit.latest(data, limit=100))]


def test_a_full_disk_has_space_for_some_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN a data folder with an entry WHEN the disk fills up THEN some more are recorded, then
    each is an error that leaves no part of a line; and WHEN it has space again THEN it goes on."""
    disk = Disk(monkeypatch, tmp_path)
    audit.record(tmp_path, "first", user="ann")
    recorded = ["first"]
    for number in range(100):
        disk.free = 0
        try:
            audit.record(tmp_path, f"full.{number}", user="ann")
        except DiskFullError:
            break
        recorded.append(f"full.{number}")
    assert len(recorded) > 10
    with pytest.raises(DiskFullError, match=r"audit\.jsonl"):
        audit.record(tmp_path, "refused", user="ann")
    assert actions(tmp_path) == recorded
    disk.free = 1 << 30
    audit.record(tmp_path, "last", user="ann")
    assert actions(tmp_path) == [*recorded, "last"]
    disk.free = 0
    audit.record(tmp_path, "full again", user="ann")
    assert (tmp_path / audit.FILE).read_bytes().endswith(b"\n")


def test_a_file_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    audit.record(tmp_path, "first", user="root")

    def refuse(*_arguments: object, **_more: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse)
        with pytest.raises(StorageError, match=r"cannot write .*Permission denied"):
            audit.record(tmp_path, "second", user="ann")
    monkeypatch.setattr("pathlib.Path.open", refuse)
    with pytest.raises(StorageError, match=r"cannot read .*Permission denied"):
        audit.latest(tmp_path, limit=5)
