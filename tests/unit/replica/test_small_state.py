"""The small state of a leader: bundles that a crash could have left, put in place elsewhere."""

from __future__ import annotations

import io
import sqlite3
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from crc32c import crc32c

from tailrace import checkpoint, control
from tailrace.backfill import queue
from tailrace.errors import CorruptError, MalformedError
from tailrace.log import lease
from tailrace.log.store import LocalStore
from tailrace.parking.parking import folder_of as parked_folder
from tailrace.replica import bundle as bundles
from tailrace.replica.adopt import adopt
from tailrace.replica.bundle import Bundle, Bundler
from tailrace.replica.frames import BundleHead
from tailrace.replica.received import Received
from tailrace.replica.small_state import FOLDERS, SHARED, folder_of, waiting
from tailrace.sinks.pull.database import store_of
from tests.fix_log import TestLog
from tests.unit.replica.state_files import ORDERS, received, write

if TYPE_CHECKING:
    from tailrace.config import Config


def content(bundle: Bundle | None) -> bytes:
    assert bundle is not None
    data = b"".join(bundle.pieces())
    assert (len(data), crc32c(data)) == (bundle.size, bundle.crc)
    return data


def files(bundle: Bundle | None) -> dict[str, bytes]:
    """What a bundle holds."""
    with tarfile.open(fileobj=io.BytesIO(content(bundle))) as tar:
        return {each.name: cast("Any", tar.extractfile(each)).read() for each in tar}


def rows_of(path: Path) -> int:
    with sqlite3.connect(path) as connection:
        return int(connection.execute("SELECT count(*) FROM parked").fetchone()[0])


def crashing(call: Any, number: int) -> Any:
    """A function that ends the process at one of its calls."""
    left = [number]

    def crash(*arguments: Any) -> Any:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        return call(*arguments)

    return crash


def test_the_folders_are_those_that_components_use(tmp_path: Path) -> None:
    config = cast("Config", SimpleNamespace(data=tmp_path))
    used = {
        checkpoint.folder_of(tmp_path, "p"),
        parked_folder(tmp_path, "p"),
        queue.folder_of(config, "p"),
        store_of(tmp_path, "p").parent,
    }
    assert used <= {tmp_path / folder / "p" for folder in FOLDERS}
    file = control.ControlFile(tmp_path, "p")
    file.pause(user="ann")
    assert (tmp_path / "control" / "p.json").exists()


def test_a_bundle_has_all_of_a_pipeline(data: Path, store: LocalStore) -> None:
    """GIVEN a pipeline with databases and files THEN its bundle has them, and nothing passing."""
    write(data / "checkpoints/orders/offsets/.4.tmp", "torn")
    write(data / "checkpoints/orders/.metadata.crc", "sum")
    write(data / "sinks/other/pull.tmp", "torn")
    bundler = Bundler(data, store)
    assert bundler.names() == [SHARED, ORDERS, "pipeline.other"]
    found = files(bundler.make(ORDERS))
    assert sorted(found) == [
        *("checkpoints/orders/commits/3", "checkpoints/orders/metadata"),
        *("checkpoints/orders/offsets/3", "control/orders.json"),
        *("parked/orders/parked.db", "parked/orders/parts/0-1.part"),
    ]
    assert found["checkpoints/orders/offsets/3"] == b"offset 3"


def test_a_follower_puts_it_in_place(data: Path, store: LocalStore, tmp_path: Path) -> None:
    """GIVEN what a follower has received WHEN it leads THEN its pipelines have the leader's state,
    and what it had of its own is kept aside."""
    own = tmp_path / "other"
    write(own / "checkpoints/orders/offsets/1", "stale")
    write(own / "snapshots/orders/state", "stale")
    bundler = Bundler(data, store)
    received(own, bundler.make(ORDERS), bundler.make(SHARED))
    for path in (folder_of(own), *folder_of(own).iterdir()):
        assert path.stat().st_mode & 0o077 == 0
    lease.follow(store)
    assert adopt(own, store.folder) == []
    lease.lead(store)
    assert adopt(own, store.folder) == [ORDERS, SHARED]
    assert (own / "checkpoints/orders/offsets/3").read_text() == "offset 3"
    assert not (own / "checkpoints/orders/offsets/1").exists()
    assert not (own / "snapshots/orders").exists()
    assert rows_of(own / "parked/orders/parked.db") == 3
    replaced = own / "replaced" / ORDERS
    assert (replaced / "checkpoints/orders/offsets/1").read_text() == "stale"
    assert (replaced / "snapshots/orders/state").read_text() == "stale"
    assert not waiting(own)
    assert (own / "checkpoints/orders/offsets/3").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("place", ["log", "data/log"])
def test_pins_move_but_for_those_of_followers(data: Path, tmp_path: Path, place: str) -> None:
    store = LocalStore(tmp_path / place, create=True)
    TestLog(store).close()  # type: ignore[arg-type]
    store.write_atomic("pin-orders.json", b"pin")
    store.write_atomic("pin-follower.db2-7432.json", b"pin")
    received(tmp_path / "other", Bundler(data, store).make(SHARED))
    log = LocalStore(tmp_path / "copy", create=True)
    assert adopt(tmp_path / "other", log.folder) == [SHARED]
    assert log.names() == ["pin-orders.json"]


def test_an_interrupted_adoption_continues(
    data: Path, store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN a crash at any rename WHEN the machine starts again THEN nothing of either is lost."""
    made = Bundler(data, store).make(ORDERS)
    for crash_at in range(1, 20):
        own = tmp_path / f"other-{crash_at}"
        write(own / "checkpoints/orders/offsets/1", "stale")
        write(own / "parked/orders/parked.db", "stale")
        received(own, made)
        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", crashing(Path.replace, crash_at))
            try:
                adopt(own, store.folder)
            except KeyboardInterrupt:
                assert waiting(own)
            else:
                break
        adopt(own, store.folder)
        assert (own / "checkpoints/orders/offsets/3").read_text() == "offset 3"
        assert rows_of(own / "parked/orders/parked.db") == 3
        stale = own / "replaced" / ORDERS
        assert (stale / "checkpoints/orders/offsets/1").read_text() == "stale", crash_at
        assert (stale / "parked/parked.db").exists() or (stale / "parked/orders/parked.db").exists()
    assert crash_at > 4


def test_a_batch_that_commits_meanwhile_is_seen(
    data: Path, store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN a batch that commits and whose parked messages move while a bundle is made THEN the
    bundle has the messages and the commit, or neither."""
    read = Bundler._read
    commits = iter(range(4, 6))

    def interfered(self: Bundler, *arguments: Any) -> Any:
        parts = read(self, *arguments)
        if (number := next(commits, None)) is not None:
            write(data / f"checkpoints/orders/commits/{number}", "commit")
            write(data / f"parked/orders/parts/{number}.part", "parked")
        return parts

    monkeypatch.setattr(Bundler, "_read", interfered)
    found = files(Bundler(data, store).make(ORDERS))
    assert {"checkpoints/orders/commits/5", "parked/orders/parts/5.part"} < found.keys()
    always = iter(range(10, 100))
    commits = always
    assert Bundler(data, store).make(ORDERS) is None


def test_a_row_that_moves_to_the_database_is_not_lost(
    data: Path, store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN a part that moves to the database while a bundle is made THEN the bundle has it."""
    walk = bundles._walk

    def moved(folder: Path) -> Any:
        yield from walk(folder)
        part = data / "parked/orders/parts/0-1.part"
        if folder.parent.name == "parked" and part.exists():
            with sqlite3.connect(data / "parked/orders/parked.db") as connection:
                connection.execute("INSERT INTO parked VALUES (3)")
            part.unlink()

    monkeypatch.setattr(bundles, "_walk", moved)
    found = files(Bundler(data, store).make(ORDERS))
    copy = data.parent / "copy.db"
    copy.write_bytes(found["parked/orders/parked.db"])
    assert rows_of(copy) == 4


@pytest.mark.parametrize("name", ["../x", "", "A", ".x", "a/b", "a" * 130])
def test_names_of_bundles_are_checked(tmp_path: Path, name: str) -> None:
    with pytest.raises(MalformedError):
        Received(tmp_path).begin(BundleHead(name=name, size=1, crc=0))


def test_a_follower_keeps_whole_bundles_only(data: Path, store: LocalStore, tmp_path: Path) -> None:
    """GIVEN a bundle that breaks off, or is damaged THEN the one before stays."""
    made = Bundler(data, store).make(ORDERS)
    assert made is not None
    follower = received(tmp_path / "other", made)
    folder = folder_of(tmp_path / "other")
    before = (folder / f"{ORDERS}.tar").read_bytes()
    follower.begin(BundleHead(name=ORDERS, size=9, crc=1))
    assert not follower.take(b"1234")
    with pytest.raises(MalformedError):
        follower.take(b"123456")
    follower.discard()
    follower.begin(BundleHead(name=ORDERS, size=2, crc=1))
    assert follower.take(b"12")
    with pytest.raises(MalformedError, match="checksum"):
        follower.complete()
    follower.discard()
    assert [path.name for path in folder.iterdir()] == [f"{ORDERS}.tar"]
    assert (folder / f"{ORDERS}.tar").read_bytes() == before
    follower.keep([SHARED])
    assert follower.names() == []


@pytest.mark.parametrize(
    "name",
    [
        *("../../etc/passwd", "/etc/passwd", "checkpoints/other/x", "control/other.json"),
        *("checkpoints/orders/../../x", "log/durable", "orders"),
    ],
)
def test_an_archive_with_other_files_is_refused(
    store: LocalStore, tmp_path: Path, name: str
) -> None:
    archive = folder_of(tmp_path / "other") / f"{ORDERS}.tar"
    archive.parent.mkdir(parents=True)
    with tarfile.open(archive, "w") as tar:
        tar.addfile(tarfile.TarInfo(name), io.BytesIO(b""))
    with pytest.raises(CorruptError, match="not part of it"):
        adopt(tmp_path / "other", store.folder)
    assert waiting(tmp_path / "other")


def test_an_archive_with_links_is_refused(store: LocalStore, tmp_path: Path) -> None:
    archive = folder_of(tmp_path / "other") / f"{ORDERS}.tar"
    archive.parent.mkdir(parents=True)
    with tarfile.open(archive, "w") as tar:
        entry = tarfile.TarInfo("checkpoints/orders/x")
        entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(entry)
    with pytest.raises(CorruptError, match="not a file"):
        adopt(tmp_path / "other", store.folder)
