"""Where embedded servers keep their files."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tailrace.testing.process import private_folder, unprivileged_user

if TYPE_CHECKING:
    import pytest


def folder_in(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root that is chosen for a server's folder if TMPDIR is `root`."""
    monkeypatch.setattr(tempfile, "tempdir", str(root))
    folder = private_folder("t-", unprivileged_user())
    folder.rmdir()
    return folder.parent


def test_a_short_tmpdir_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        root = Path(name)
        root.chmod(0o777)
        assert folder_in(root, monkeypatch) == root
        root.chmod(0o700)
        own = root if unprivileged_user() is None else Path("/tmp")
        assert folder_in(root, monkeypatch) == own


def test_a_long_tmpdir_is_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    root = tmp_path / ("x" * 50)
    root.mkdir()
    assert folder_in(root, monkeypatch) == Path("/tmp")
