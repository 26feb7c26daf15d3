from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import AlreadyRunningError, StorageError
from tailrace.run.lock import data_folder_lock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HOLD = """
import fcntl, sys, time
lock = open(sys.argv[1], "a+")
fcntl.flock(lock, fcntl.LOCK_EX)
lock.truncate(0); lock.write(sys.argv[2]); lock.flush()
print("locked", flush=True)
time.sleep(float(sys.argv[3]))
"""


def hold(path: Path, owner: int, seconds: float) -> subprocess.Popen[bytes]:
    """A process that holds the lock for a supervisor of that process id."""
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", HOLD, str(path), str(owner), str(seconds)],
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


def acquire(where: Path, clock: Callable[[], float] = time.monotonic) -> None:
    with data_folder_lock(where, clock=clock):
        pass


def test_the_lock_names_its_owner(tmp_path: Path) -> None:
    where = tmp_path / "data" / "status"
    with data_folder_lock(where) as lock:
        assert os.get_inheritable(lock) is False
        assert (where / "run.lock").read_text().strip() == str(os.getpid())
    acquire(where)


def test_a_full_disk_does_not_keep_the_lock(tmp_path: Path) -> None:
    """GIVEN a disk without space for the owner's name WHEN a process starts THEN it has the lock:
    the watchdog has to report that disk."""
    (tmp_path / "run.lock").symlink_to("/dev/full")
    acquire(tmp_path)


def test_a_supervisor_that_runs_is_not_waited_for(tmp_path: Path) -> None:
    process = hold(tmp_path / "run.lock", os.getpid(), 600)
    try:
        with pytest.raises(AlreadyRunningError, match="uses the data folder") as caught:
            acquire(tmp_path)
        assert "another folder" in caught.value.hint
    finally:
        process.kill()
        process.communicate()


def test_processes_of_a_dead_supervisor_are_waited_for(tmp_path: Path) -> None:
    process = hold(tmp_path / "run.lock", 2**22 + 1, 0.3)
    with data_folder_lock(tmp_path):
        assert process.wait(10) == 0
    process.communicate()


def test_the_wait_for_processes_has_a_limit(tmp_path: Path) -> None:
    process = hold(tmp_path / "run.lock", 2**22 + 1, 600)
    ticks = iter(range(0, 10_000, 50))
    try:
        with pytest.raises(AlreadyRunningError):
            acquire(tmp_path, clock=lambda: float(next(ticks)))
    finally:
        process.kill()
        process.communicate()


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot use"):
        acquire(tmp_path / "file" / "status")
