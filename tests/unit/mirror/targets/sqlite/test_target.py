"""The file of a mirror."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from tailrace.mirror import target_of

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
