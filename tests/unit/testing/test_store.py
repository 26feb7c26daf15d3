"""The power-cut model of `MemoryStore`: what it may lose, and what it may not."""

from __future__ import annotations

import errno
import random

import pytest

from tailrace.errors import DiskFullError, LogFencedError, StorageError
from tailrace.testing import MemoryStore, PowerCutError


def outcomes(store_after: object, count: int = 300) -> set[bytes | None]:
    """The file `a` after a power cut, over many seeds; None when it is gone."""
    assert callable(store_after)
    found = set()
    for seed in range(count):
        store = store_after()
        store.power_cut(random.Random(seed))
        found.add(store.files().get("a"))
    return found


def test_durable_content_survives() -> None:
    def prepare() -> MemoryStore:
        store = MemoryStore()
        store.write_atomic("a", b"atomic ")
        file = store.append_to("a")
        file.write([b"synced"])
        file.sync()
        return store

    assert outcomes(prepare) == {b"atomic synced"}


def test_unsynced_bytes_are_lost_kept_in_part_or_garbled() -> None:
    def prepare() -> MemoryStore:
        store = MemoryStore.holding({"a": b"safe"})
        store.append_to("a").write([b"0123456789"])
        return store

    found = outcomes(prepare)
    assert {b"safe", b"safe0123456789"} < found
    assert all(data is not None and data.startswith(b"safe") for data in found)
    assert any(data is not None and not b"safe0123456789".startswith(data) for data in found)


def test_an_overwrite_reverts_or_is_torn() -> None:
    def prepare() -> MemoryStore:
        store = MemoryStore.holding({"a": b"oldold"})
        store.overwrite("a", b"newnew")
        return store

    assert outcomes(prepare) == {b"newnew"[:kept] + b"oldold"[kept:] for kept in range(7)}


def test_a_name_made_by_appending_may_be_lost() -> None:
    def prepare() -> MemoryStore:
        store = MemoryStore()
        file = store.append_to("a")
        file.write([b"x"])
        file.sync()
        return store

    assert outcomes(prepare) == {None, b"x"}


def test_removal_and_truncation_are_durable() -> None:
    store = MemoryStore.holding({"a": b"0123", "b": b""})
    store.truncate("a", 2)
    store.remove("b")
    store.power_cut(random.Random(0))
    assert store.files() == {"a": b"01"}


@pytest.mark.parametrize("operation", range(1, 6))
def test_the_power_goes_inside_any_operation(operation: int) -> None:
    seen = set()
    for seed in range(60):
        rng = random.Random(seed)
        store = MemoryStore.holding({"a": b"old"})
        store.cut_power_at(operation, rng)
        with pytest.raises(PowerCutError):
            workload(store)
        store.power_cut(rng)
        seen.add(tuple(store.files().items()))
    assert len(seen) > 1


def workload(store: MemoryStore) -> None:
    store.write_atomic("a", b"new")
    file = store.append_to("a")
    file.write([b"more"])
    file.sync()
    store.overwrite("a", b"X")
    store.remove("a")


def test_after_a_power_cut_open_files_and_locks_are_gone() -> None:
    store = MemoryStore()
    file = store.append_to("a")
    with store.lock("lock"):
        store.power_cut(random.Random(0))
        with store.lock("lock"):
            pass
        with pytest.raises(StorageError):
            file.write([b"x"])


def test_a_lock_that_outlives_the_power_does_not_open_the_next_one() -> None:
    store = MemoryStore()
    before = store.lock("lock")
    before.__enter__()
    store.power_cut(random.Random(0))
    with store.lock("lock"):
        before.__exit__(None, None, None)
        with pytest.raises(LogFencedError), store.lock("lock"):
            pass


def test_faults_strike_once_at_the_right_time() -> None:
    store = MemoryStore()
    store.fail("write", at=2, code=errno.ENOSPC)
    file = store.append_to("a")
    file.write([b"ab"])
    with pytest.raises(DiskFullError):
        file.write([b"cdef"])
    assert store.files() == {"a": b"abcd"}
    file.write([b"gh"])


def test_a_file_that_failed_to_sync_may_not_be_used_again() -> None:
    store = MemoryStore()
    store.fail("sync", code=errno.EIO)
    file = store.append_to("a")
    file.write([b"x"])
    for attempt in (file.sync, file.sync):
        with pytest.raises(StorageError):
            attempt()
