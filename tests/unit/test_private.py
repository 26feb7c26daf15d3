"""Folders and files that hold rows are for their owner only."""

from __future__ import annotations

import os
import stat
import subprocess
from typing import TYPE_CHECKING

import pytest

from tailrace import checkpoint, private
from tailrace.backfill.spool import Spool
from tailrace.log.store import LocalStore
from tailrace.position import ORIGIN
from tailrace.run import status
from tailrace.run.lock import data_folder_lock
from tailrace.state_file import StateFile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def generous() -> Iterator[None]:
    """A process that lets everybody read its files."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, str]:
    """The modes of everything in a folder."""
    return {
        str(path.relative_to(folder)): oct(stat.S_IMODE(path.stat().st_mode))
        for path in folder.rglob("*")
    }


def test_the_log(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "var" / "log", create=True)
    store.append_to("0.seg").close()
    store.write_atomic("durable", b"x")
    with store.lock("lock"):
        found = modes(tmp_path)
    assert found == {
        "var": "0o700", "var/log": "0o700", "var/log/0.seg": "0o600", "var/log/durable": "0o600",
        "var/log/lock": "0o600",
    }  # fmt: skip


def test_spools_states_and_checkpoints(tmp_path: Path) -> None:
    data = tmp_path / "data"
    Spool(data / "spool").write(1, [])
    StateFile(data / "state" / "one.json", dict).write({"a": 1})
    checkpoint.fix_start(data / "checkpoints" / "p", lambda: ORIGIN, history="")
    status.clear(data / "status")
    with data_folder_lock(data / "run"):
        found = modes(tmp_path)
    assert {found[name] for name in found if (tmp_path / name).is_dir()} == {"0o700"}
    assert found["data/spool/000000000001.arrow"] == "0o600"
    assert found["data/state/one.json"] == "0o600"


def test_a_folder_that_exists_keeps_its_mode(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir(0o750)
    private.create_folder(shared)
    private.create_folder(shared / "own")
    assert modes(tmp_path) == {"shared": "0o750", "shared/own": "0o700"}


def test_a_file_in_the_place_of_a_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        private.create_folder(tmp_path / "file")


def test_new_files_of_a_process_and_its_children(tmp_path: Path) -> None:
    """Spark's files have the mode that the umask allows."""
    private.restrict_new_files()
    (tmp_path / "folder").mkdir()
    (tmp_path / "own").touch()
    subprocess.run(["touch", tmp_path / "child"], check=True)
    assert modes(tmp_path) == {"folder": "0o700", "own": "0o600", "child": "0o600"}


def test_a_stricter_umask_stays() -> None:
    os.umask(0o177)
    private.restrict_new_files()
    assert os.umask(0) == 0o177
