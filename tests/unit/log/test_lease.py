"""The lease: one holder, epochs that only rise, a paused appender that is fenced."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING

import pytest
from crc32c import crc32c

from tailrace.errors import CorruptError, LogFencedError
from tailrace.log import lease
from tailrace.log.appender import Appender
from tailrace.log.lease import Lease, last_epoch, locked, raise_epoch
from tailrace.log.store import LocalStore
from tailrace.log.term import first_epoch, term_of
from tailrace.testing import MemoryStore
from tests.fix_log import TestLog, transaction

if TYPE_CHECKING:
    from pathlib import Path


def record(epoch: int, *, magic: bytes = b"TRle", version: int = 1) -> bytes:
    head = struct.pack("<4sHHQ", magic, version, 0, epoch)
    return head + struct.pack("<I", crc32c(head)) + json.dumps({"pid": 1, "host": "b"}).encode()


def test_each_holder_has_a_higher_epoch() -> None:
    store = MemoryStore()
    epochs = []
    for _ in range(3):
        held = Lease.acquire(store)
        epochs.append(held.epoch)
        held.release()
    assert epochs == [1, 2, 3]


def test_a_second_holder_is_refused_with_the_name_of_the_first(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    held = Lease.acquire(store)
    with pytest.raises(LogFencedError, match=r"another process is appending .*process \d+ on "):
        Lease.acquire(LocalStore(tmp_path))
    held.check()
    held.release()
    Lease.acquire(LocalStore(tmp_path)).release()


def test_a_refused_holder_changes_nothing() -> None:
    store = MemoryStore()
    held = Lease.acquire(store)
    before = store.files()
    with pytest.raises(LogFencedError):
        Lease.acquire(store)
    assert store.files() == before
    held.release()


def test_a_holder_that_was_paused_is_fenced_at_append() -> None:
    made = TestLog()
    made.append(transaction(0))
    made.store.write_atomic(lease.NAME, record(made.lease.epoch + 1))
    before = made.store.files()
    pattern = r"epoch 1 has ended: epoch 2 appends now \(process 1 on b"
    with pytest.raises(LogFencedError, match=pattern):
        made.append(transaction(1))
    assert made.store.files() == before


def test_a_holder_that_was_paused_cuts_and_rolls_nothing() -> None:
    """Rewinding recovers, and recovery would cut off what the new holder is writing."""
    made = TestLog()
    made.append_pieces(transaction(0, rows=4), 3, ending=False)
    made.store.write_atomic(lease.NAME, record(made.lease.epoch + 1))
    before = made.store.files()
    other = made.appender.identity.__class__(
        system_identifier="7", timeline=2, database="shop", slot="s", publication="p"
    )
    with pytest.raises(LogFencedError):
        made.appender.rewind()
    with pytest.raises(LogFencedError):
        made.appender.change_identity(other)
    with pytest.raises(LogFencedError):
        Appender.open(made.store, made.lease, made.layout)
    assert made.store.files() == before


def test_a_lease_file_that_is_gone_fences_its_holder() -> None:
    store = MemoryStore()
    held = Lease.acquire(store)
    store.remove(lease.NAME)
    with pytest.raises(LogFencedError):
        held.check()


def test_epochs_do_not_go_back_when_the_lease_file_is_lost() -> None:
    made = TestLog()
    made.append(transaction(0))
    made.close()
    for _ in range(3):
        Lease.acquire(made.store).release()
    made.store.write_atomic(lease.NAME, record(9))
    held = Lease.acquire(made.store)
    appender = Appender.open(made.store, held, made.layout)
    assert appender is not None
    appender.append(made.whole(transaction(1)))
    held.release()
    made.store.remove(lease.NAME)
    assert Lease.acquire(made.store).epoch == 11


def test_a_lease_older_than_the_log_may_not_append() -> None:
    made = TestLog()
    made.close()
    made.store.write_atomic(lease.NAME, record(5))
    held = Lease.acquire(made.store)
    appender = Appender.open(made.store, held, made.layout)
    assert appender is not None
    appender.append(made.whole(transaction(0)))
    held.release()
    made.store.remove(lease.NAME)
    made.store.remove("durable")
    late = Lease.acquire(made.store)
    assert late.epoch == 1
    with pytest.raises(LogFencedError, match="written in epoch 6, but this lease is epoch 1"):
        Appender.open(made.store, late, made.layout)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "unreadable"),
        (record(3)[:10], "unreadable"),
        (b"X" + record(3)[1:], "unreadable"),
        (record(3, magic=b"XXXX"), "magic"),
        (record(3, version=2), "version 2"),
        (record((1 << 64) - 1), "last possible epoch"),
    ],
    ids=["empty", "cut", "flipped", "foreign", "future", "last"],
)
def test_a_lease_file_that_is_not_one_stops_everybody(data: bytes, problem: str) -> None:
    store = MemoryStore.holding({lease.NAME: data})
    with pytest.raises(CorruptError, match=problem):
        Lease.acquire(store)
    assert store.files() == {lease.NAME: data}


def test_a_holder_that_left_no_name_is_unknown() -> None:
    store = MemoryStore.holding({lease.NAME: record(3)[:20] + b"[" * 2000})
    with store.lock("lock"), pytest.raises(LogFencedError, match="unknown holder"):
        Lease.acquire(store)


def test_a_new_term_begins_with_its_first_epoch() -> None:
    store = MemoryStore.holding({lease.NAME: record(7)})
    held = Lease.acquire(store, 1)
    assert held.epoch == first_epoch(1)
    held.release()
    again = Lease.acquire(store, 1)
    assert again.epoch == first_epoch(1) + 1
    again.release()
    later = Lease.acquire(store, 4)
    assert later.epoch == first_epoch(4)
    later.release()


def test_capture_stays_in_the_term() -> None:
    store = MemoryStore.holding({lease.NAME: record(first_epoch(3))})
    for count in (1, 2):
        held = Lease.acquire(store)
        assert held.epoch == first_epoch(3) + count
        held.release()


def test_a_term_that_has_passed_is_refused() -> None:
    store = MemoryStore.holding({lease.NAME: record(first_epoch(3))})
    with pytest.raises(LogFencedError, match="term 2 has passed: the log is of term 3"):
        Lease.acquire(store, 2)
    assert last_epoch(store) == first_epoch(3)
    Lease.acquire(store, 3).release()  # the lock is free


def test_the_term_of_the_mark_counts_without_a_lease_file() -> None:
    made = TestLog()
    made.close()
    made.store.remove(lease.NAME)
    held = Lease.acquire(made.store, 2)
    appender = Appender.open(made.store, held, made.layout)
    assert appender is not None
    appender.append(made.whole(transaction(0)))
    held.release()
    made.store.remove(lease.NAME)
    assert term_of(last_epoch(made.store)) == 2
    with pytest.raises(LogFencedError):
        Lease.acquire(made.store, 1)


@pytest.mark.parametrize("term", [None, 1])
def test_the_epochs_of_a_term_do_not_reach_the_next(term: int | None) -> None:
    """Capture would read the slot of another term."""
    last = record(first_epoch(2) - 2)
    store = MemoryStore.holding({lease.NAME: last})
    with pytest.raises(CorruptError, match="last possible epoch of term 1"):
        Lease.acquire(store, term)
    assert store.files() == {lease.NAME: last}
    assert Lease.acquire(store, 2).epoch == first_epoch(2)


def test_the_lock_alone_changes_no_epoch() -> None:
    store = MemoryStore.holding({lease.NAME: record(3)})
    before = store.files()
    with locked(store):
        assert store.files() == before
        with pytest.raises(LogFencedError, match=r"another process .*process 1 on b"):
            Lease.acquire(store)
        assert raise_epoch(store, 1) == first_epoch(1)
    assert Lease.acquire(store).epoch == first_epoch(1) + 1
