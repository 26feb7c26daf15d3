"""The file of a mirror."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tailrace.mirror import target_of
from tests.waiting import holds

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_the_file_has_the_mode_that_the_umask_allows(tmp_path: Path, umask: int, mode: int) -> None:
    """A copy is there to be read: who may read it is for the user to say."""
    file = tmp_path / "copy.db"
    target = target_of(f"sqlite:///{file}", "orders")
    before = os.umask(umask)
    try:
        target.open()
    finally:
        os.umask(before)
        target.close()
    assert stat.S_IMODE(file.stat().st_mode) == mode


def test_a_new_file_that_another_mirror_is_about_to_use(tmp_path: Path) -> None:
    """GIVEN a connection that writes to a file without WAL, as a second mirror does for a moment
    WHEN a mirror switches the file to WAL THEN it waits: SQLite refuses it at once."""
    file = tmp_path / "copy.db"
    target = target_of(f"sqlite:///{file}", "orders")
    with (
        contextlib.closing(
            sqlite3.connect(file, isolation_level=None, check_same_thread=False)
        ) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        other.execute("CREATE TABLE t (id)")
        other.execute("BEGIN IMMEDIATE")
        opening = pool.submit(target.open)
        holds(lambda: not opening.done(), 0.5, "waiting")
        other.execute("COMMIT")
        assert opening.result() is None
    target.close()
