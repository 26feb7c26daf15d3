"""One writer per file."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from tailrace.mirror.targets.file_lock import FileLock

if TYPE_CHECKING:
    from pathlib import Path


def test_second_writer_waits_for_the_first(tmp_path: Path) -> None:
    one, other = FileLock(tmp_path / "x.db"), FileLock(tmp_path / "folder" / ".." / "x.db")
    one.acquire()
    one.acquire()
    acquired = threading.Event()

    def write() -> None:
        other.acquire()
        acquired.set()
        other.release()

    thread = threading.Thread(target=write)
    thread.start()
    assert not acquired.is_set()
    one.release()
    one.release()
    thread.join(30)
    assert acquired.is_set()


def test_release_without_acquire_leaves_the_lock_of_the_other_writer(tmp_path: Path) -> None:
    one, other = FileLock(tmp_path / "x.db"), FileLock(tmp_path / "x.db")
    one.acquire()
    other.release()
    assert one._lock.locked()
    one.release()
    assert not one._lock.locked()


def test_locks_of_two_files_are_independent(tmp_path: Path) -> None:
    one, other = FileLock(tmp_path / "x.db"), FileLock(tmp_path / "y.db")
    one.acquire()
    other.acquire()
    one.release()
    other.release()
