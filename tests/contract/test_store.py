"""Every store keeps the contract of `tailrace.log.store`."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import DiskFullError, LogFencedError, StorageError
from tailrace.log.store import LocalStore
from tailrace.observe import failpoint
from tailrace.testing import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tailrace.log.store import Store


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    yield LocalStore(tmp_path / "log", create=True) if request.param == "local" else MemoryStore()
    failpoint.configure("")


def fail(store: Store, action: str, code: int) -> None:
    """Make the next write or sync of a file fail."""
    if isinstance(store, MemoryStore):
        store.fail("write" if action == "write" else "sync", code=code)
    else:
        name = {errno.ENOSPC: "enospc", errno.EIO: "eio"}[code]
        failpoint.configure(f"log.before-{action}={name}")


def test_an_empty_store_has_no_names(store: Store) -> None:
    assert store.names() == []


def test_names_are_sorted(store: Store) -> None:
    for name in ("b", "a", "c"):
        store.write_atomic(name, b"")
    assert store.names() == ["a", "b", "c"]


def test_atomic_writes_replace_the_whole_file(store: Store) -> None:
    store.write_atomic("a", b"a long first version")
    store.write_atomic("a", b"short")
    assert store.read("a", 0, 100) == b"short"
    assert store.size("a") == 5


def test_reads_end_with_the_file(store: Store) -> None:
    store.write_atomic("a", b"0123456789")
    assert store.read("a", 3, 4) == b"3456"
    assert store.read("a", 8, 4) == b"89"
    assert store.read("a", 10, 4) == b""
    assert store.read("a", 400, 4) == b""


@pytest.mark.parametrize("operation", ["size", "read", "overwrite", "truncate", "rewrite"])
def test_a_missing_file_is_said_to_be_missing(store: Store, operation: str) -> None:
    arguments = {"size": (), "read": (0, 1), "overwrite": (b"x",)}.get(operation, (0,))
    with pytest.raises(FileNotFoundError):
        getattr(store, operation)("a", *arguments)


def test_removing_is_idempotent(store: Store) -> None:
    store.write_atomic("a", b"x")
    store.remove("a")
    store.remove("a")
    assert store.names() == []


def test_appending_makes_the_file_and_goes_on_behind_its_end(store: Store) -> None:
    first = store.append_to("a")
    assert first.size == 0
    first.write([b"ab", b"", b"cd"])
    first.sync()
    first.close()
    again = store.append_to("a")
    assert again.size == 4
    again.write([b"ef"])
    assert again.size == 6
    again.close()
    assert store.read("a", 0, 100) == b"abcdef"


def test_readers_see_what_is_appended_before_it_is_synced(store: Store) -> None:
    file = store.append_to("a")
    file.write([b"abc"])
    assert store.read("a", 0, 100) == b"abc"
    assert store.size("a") == 3
    file.close()


def test_closing_twice_is_fine(store: Store) -> None:
    file = store.append_to("a")
    file.close()
    file.close()


def test_many_and_large_buffers_are_written_whole(store: Store) -> None:
    buffers = [os.urandom(70_000), b"", *(bytes((number,)) * number for number in range(200))]
    file = store.append_to("a")
    file.write(buffers)
    file.close()
    assert store.read("a", 0, 1 << 20) == b"".join(buffers)


def test_overwriting_leaves_the_rest_alone(store: Store) -> None:
    store.write_atomic("a", b"0123456789")
    store.overwrite("a", b"abc")
    assert store.read("a", 0, 100) == b"abc3456789"


def test_truncating_cuts_the_end(store: Store) -> None:
    store.write_atomic("a", b"0123456789")
    store.truncate("a", 4)
    assert store.read("a", 0, 100) == b"0123"


@pytest.mark.parametrize("size", [0, 4, 3_000_000])
def test_rewriting_keeps_the_first_bytes(store: Store, size: int) -> None:
    data = os.urandom(3_000_000)
    store.write_atomic("a", data)
    store.rewrite("a", size)
    assert store.read("a", 0, 4_000_000) == data[:size]
    assert store.names() == ["a"]


def test_a_rewritten_file_may_be_used_after_a_failed_sync(store: Store) -> None:
    file = store.append_to("a")
    file.write([b"0123456789"])
    fail(store, "sync", errno.EIO)
    with pytest.raises(StorageError):
        file.sync()
    store.rewrite("a", 5)
    again = store.append_to("a")
    again.write([b"x"])
    again.sync()
    assert store.read("a", 0, 100) == b"01234x"


def test_a_lock_is_exclusive_until_it_ends(store: Store) -> None:
    with store.lock("lock"):
        with pytest.raises(LogFencedError), store.lock("lock"):
            pass
        with pytest.raises(LogFencedError), store.lock("lock"):
            pass
    with store.lock("lock"):
        pass


def test_errors_inside_a_lock_are_not_the_locks(store: Store) -> None:
    with pytest.raises(IsADirectoryError), store.lock("lock"):
        raise IsADirectoryError
    with store.lock("lock"):
        pass


@pytest.mark.parametrize(
    ("code", "error"), [(errno.ENOSPC, DiskFullError), (errno.EIO, StorageError)]
)
def test_a_failed_write_leaves_at_most_a_prefix(
    store: Store, code: int, error: type[Exception]
) -> None:
    file = store.append_to("a")
    file.write([b"whole"])
    fail(store, "write", code)
    with pytest.raises(error):
        file.write([b"0123456789"])
    assert b"whole0123456789".startswith(store.read("a", 0, 100))
    file.close()


def test_a_failed_sync_is_a_storage_error(store: Store) -> None:
    file = store.append_to("a")
    file.write([b"x"])
    fail(store, "sync", errno.EIO)
    with pytest.raises(StorageError):
        file.sync()
    file.close()


def test_a_failed_atomic_write_keeps_the_old_file(store: Store) -> None:
    store.write_atomic("a", b"old")
    if isinstance(store, MemoryStore):
        store.fail("write", code=errno.ENOSPC)
    else:
        failpoint.configure("store.before-rename=enospc")
    with pytest.raises(DiskFullError):
        store.write_atomic("a", b"new")
    assert store.read("a", 0, 100) == b"old"
    assert store.names() == ["a"]


def test_several_threads_replace_a_file(tmp_path: Path) -> None:
    """As the task that plans and the thread that watches do with the pin of a pipeline."""
    records = [bytes([letter]) * 4096 for letter in b"abcd"]

    def write(record: bytes) -> None:
        for _ in range(50):
            LocalStore(tmp_path).write_atomic("pin", record)
            assert LocalStore(tmp_path).read("pin", 0, 5000) in records

    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(write, record) for record in records]:
            done.result()
    assert [path.name for path in tmp_path.iterdir()] == ["pin"]


def test_a_folder_that_is_gone_is_a_storage_error(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "nowhere")
    assert store.names() == []
    with pytest.raises(StorageError):
        store.write_atomic("a", b"x")
    with pytest.raises(StorageError):
        store.append_to("a")
    with pytest.raises(StorageError), store.lock("lock"):
        pass


def test_the_lock_sweeps_up_after_interrupted_writes(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    for name in ("0000000001-0000000000001000.seg.tmp", "0000000001-0000000000001000.idx.tmp"):
        (tmp_path / name).write_bytes(b"half")
    (tmp_path / "pin-reader.json.tmp").write_bytes(b"a reader is writing this")
    (tmp_path / "pin-dead.json.tmp").write_bytes(b"a reader was writing this")
    os.utime(tmp_path / "pin-dead.json.tmp", (0, 0))
    (tmp_path / "0000000001-0000000000001000.seg").write_bytes(b"whole")
    with store.lock("lock"):
        assert {path.name for path in tmp_path.iterdir()} == {
            "0000000001-0000000000001000.seg",
            "lock",
            "pin-reader.json.tmp",
        }
