"""The appender: durable when it returns, in order, rolling, unusable after a failure."""

from __future__ import annotations

import errno
import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import DiskFullError, LogError, MalformedError, StorageError
from tailrace.log.appender import Appender
from tailrace.log.format import mark as marks
from tailrace.log.format.entry import Kind
from tailrace.log.format.layout import Codec
from tailrace.log.format.segment import list_segments, read_header, walk
from tailrace.log.lease import Lease
from tailrace.log.reader import Log
from tailrace.log.verify import verify
from tailrace.position import Lsn, Position
from tailrace.testing import MemoryStore
from tests.fix_log import (
    IDENTITY,
    START,
    TestLog,
    all_changes,
    insert,
    loose,
    random_log,
    relation,
    same,
    transaction,
)

if TYPE_CHECKING:
    from tailrace.log.store import Store


def reopened(made: TestLog) -> Appender:
    made.close()
    made.lease = Lease.acquire(made.store)
    found = Appender.open(made.store, made.lease, made.layout)
    assert found is not None
    return found


def test_a_new_log_begins_just_before_the_slot() -> None:
    made = TestLog()
    mark = made.appender.mark
    assert mark.position == Position(Lsn(START - 1), 0)
    assert mark.end_lsn == START
    assert made.appender.whole
    assert Log(made.store).end() == mark
    assert all_changes(made.store) == []


def test_a_log_is_not_made_twice() -> None:
    made = TestLog()
    with pytest.raises(LogError, match="already"):
        Appender.create(made.store, made.lease, made.layout, identity=IDENTITY, start_lsn=START)


def test_open_returns_none_without_a_log() -> None:
    store = MemoryStore()
    assert Appender.open(store, Lease.acquire(store), TestLog().layout) is None


def test_what_append_returned_for_survives_a_power_cut(made: TestLog) -> None:
    made.store.power_cut(random.Random(0))
    lease = Lease.acquire(made.store)
    appender = Appender.open(made.store, lease, made.layout)
    assert appender is not None
    assert appender.mark == made.appender.mark
    assert all_changes(made.store) == made.changes()


@pytest.mark.parametrize("codec", list(Codec))
def test_the_mark_follows_every_whole_entry(codec: Codec) -> None:
    made = TestLog(codec=codec)
    for number in range(3):
        made.append(transaction(number))
        mark = made.appender.mark
        unit = made.units[-1]
        assert (mark.position, mark.end_lsn) == (Position(unit.lsn, 1), unit.end_lsn)
        assert (mark.time, mark.epoch) == (unit.time, 1)
        assert mark.offset == made.store.size(list_segments(made.store)[-1].file)
        assert marks.read(made.store) == mark


def test_the_mark_moves_after_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread acknowledges what the mark says."""
    made = TestLog()
    before, write, seen = made.appender.mark, marks.write, []

    def spy(store: Store, mark: marks.Mark) -> None:
        seen.append(made.appender.mark)
        write(store, mark)

    monkeypatch.setattr(marks, "write", spy)
    made.append(transaction(0))
    assert seen == [before]
    assert made.appender.mark != before


def test_the_mark_waits_for_the_end_of_a_transaction() -> None:
    made = TestLog()
    before = made.appender.mark
    pieces = made.pieces(transaction(0, rows=6), 2, 4, 6)
    for entry in pieces[:-1]:
        made.appender.append(entry)
        assert made.appender.mark == marks.read(made.store) == before
        assert not made.appender.whole
    made.appender.append(pieces[-1])
    assert made.appender.whole
    assert made.appender.mark.position == Position(transaction(0).lsn, 5)


def test_the_marks_time_never_goes_back() -> None:
    made = TestLog()
    made.append(replace(transaction(0), time=5000))
    made.append(replace(transaction(1), time=3000))
    assert made.appender.mark.time == 5000


def test_progress_moves_the_end_and_not_the_position(made: TestLog) -> None:
    before = made.appender.mark
    made.progress(0x9000)
    after = made.appender.mark
    assert (after.position, after.end_lsn) == (before.position, Lsn(0x9000))
    assert all_changes(made.store) == made.changes()


def test_segments_roll_and_continue_each_other() -> None:
    made = random_log(random.Random(5), entries=30, segment_bytes=600)
    names = list_segments(made.store)
    assert len(names) > 5
    ended = None
    for name in names:
        header, first = read_header(made.store, name)
        placed = list(walk(made.store, name, first))
        assert placed[0].entry.kind is Kind.SCHEMA
        assert header.identity == IDENTITY
        if ended is not None:
            assert header.base == ended
        ended = placed[-1].entry.last
        if len(placed) > 2:
            assert placed[-1].start < first + 600 + 2000
    assert same(all_changes(made.store), made.changes())


def test_a_reopened_log_continues_where_it_ended() -> None:
    for seed in range(10):
        made = random_log(random.Random(seed))
        appender = made.appender = reopened(made)
        assert appender.mark.epoch == 1
        made.session.sent.clear()
        made.append(transaction(1000))
        assert made.appender.mark.epoch == made.lease.epoch == 2
        assert same(all_changes(made.store), made.changes())


def test_rewinding_forgets_an_unfinished_transaction() -> None:
    for segment_bytes in (1, 400, 1 << 20):
        made = TestLog(segment_bytes=segment_bytes)
        made.append(transaction(0))
        made.append_pieces(transaction(1, rows=6), 2, 4, 6, ending=False)
        made.appender.rewind()
        assert made.appender.whole
        made.session.sent.clear()
        made.append_pieces(transaction(1, rows=6), 3, 5)
        made.append(transaction(2))
        assert all_changes(made.store) == made.changes()


def test_rewinding_a_whole_log_does_nothing(made: TestLog) -> None:
    before = made.store.files()
    made.appender.rewind()
    assert made.store.files() == before


def test_a_new_identity_begins_a_new_segment(made: TestLog) -> None:
    other = replace(IDENTITY, timeline=2)
    made.appender.change_identity(other)
    made.append(transaction(3))
    headers = [Log(made.store).header(name) for name in list_segments(made.store)]
    assert [header.identity for header in headers] == [IDENTITY, other]
    assert all_changes(made.store) == made.changes()
    assert reopened(made).identity == other


def test_a_new_identity_is_in_force_before_anything_is_appended(made: TestLog) -> None:
    made.appender.change_identity(replace(IDENTITY, timeline=2))
    assert Log(made.store).end() == made.appender.mark
    assert all_changes(made.store) == made.changes()


def test_the_same_identity_changes_nothing(made: TestLog) -> None:
    before = made.store.files()
    made.appender.change_identity(replace(IDENTITY))
    assert made.store.files() == before


def test_entries_out_of_order_are_refused(made: TestLog) -> None:
    again = made.whole(transaction(2))
    older = made.whole(transaction(1))
    first, second, *_ = made.pieces(transaction(3, rows=6), 3, 5)
    backwards = replace(made.whole(transaction(3)), end_lsn=Lsn(5))
    upside_down = replace(made.whole(transaction(3)), first=Position(transaction(9).lsn, 0))
    overlapping = replace(made.whole(transaction(3)), first=again.last)
    before = made.store.files()
    for entry in (again, older, second, backwards, upside_down, overlapping):
        with pytest.raises(MalformedError, match="cannot follow"):
            made.appender.append(entry)
    assert made.store.files() == before
    made.appender.append(first)
    other = replace(second, xid=999)
    for entry in (other, first, made.whole(transaction(4))):
        with pytest.raises(MalformedError, match="cannot follow"):
            made.appender.append(entry)
    made.appender.append(second)


def test_an_empty_transaction_is_an_entry_like_others(made: TestLog) -> None:
    made.append(replace(transaction(3), steps=()))
    assert made.appender.mark.position == Position(transaction(3).lsn, 0)
    made.append(loose(transaction(4).lsn))
    assert same(all_changes(made.store), made.changes())


@pytest.mark.parametrize("action", ["write", "sync"])
@pytest.mark.parametrize("at", range(1, 8))
def test_after_a_failure_the_appender_is_closed_and_recovery_helps(action: str, at: int) -> None:
    made = TestLog(segment_bytes=500)
    made.append(transaction(0))
    made.store.fail("write" if action == "write" else "sync", at=at, code=errno.EIO)
    with pytest.raises(StorageError):
        made.append_all(transaction(number) for number in range(1, 30))
    held = len(made.units)
    before = made.store.files()
    with pytest.raises(LogError, match="closed"):
        made.appender.append(made.whole(transaction(40)))
    with pytest.raises(LogError, match="closed"):
        made.appender.change_identity(replace(IDENTITY, timeline=2))
    assert made.store.files() == before
    made.appender = reopened(made)
    found = all_changes(made.store)
    assert found[: 2 * held] == made.changes()
    assert len(found) in (2 * held, 2 * held + 2)


def test_a_full_disk_raises_disk_full() -> None:
    made = TestLog()
    made.store.fail("write", code=errno.ENOSPC)
    with pytest.raises(DiskFullError):
        made.append(transaction(0))


def test_a_stale_index_of_a_segment_that_was_taken_back_is_not_used() -> None:
    """A crash between the removal of a segment and of its index leaves the index."""
    made = TestLog(segment_bytes=300)
    made.append(transaction(0))
    made.append_pieces(transaction(1, rows=8), *range(2, 9), ending=False)
    stale = {name: data for name, data in made.store.files().items() if name.endswith(".idx")}
    made.appender.rewind()
    for name, data in stale.items():
        if name not in made.store.files():
            made.store.write_atomic(name, data)
    made.session.sent.clear()
    table = relation(1, version=3)
    made.append_pieces(transaction(1, *(insert(table, key) for key in range(9))), 3, 5, 7)
    made.append(transaction(2))
    log = Log(made.store)
    changes = made.changes()
    for at, change in enumerate(changes):
        found = [entry for entry in log.read(change.position) if entry.changes]
        assert bool(found) == (at + 1 < len(changes))


def test_the_time_of_creation_comes_from_the_given_clock() -> None:
    header = Log(TestLog().store).header(list_segments(TestLog().store)[0])
    assert header.created_at == "2026-01-31T12:00:00+00:00"


def test_dropped_tables_are_left_out_of_later_segments() -> None:
    """GIVEN tables that were dropped WHEN the next session begins THEN new segments do not open
    with them, and the log is valid."""
    made = TestLog(segment_bytes=1)
    made.append(transaction(0, insert(relation(1), 1), insert(relation(2), 2)))
    assert made.appender.forget_dropped(lambda oids: oids - {1}) == 1
    made.session.sent.clear()
    made.append(transaction(1, insert(relation(2), 3)))
    made.append(transaction(2, insert(relation(3), 4)))
    log = made.log()
    known = [item.oid for _, item, _ in log.relations(log.end().position)]
    assert known == [2, 3]
    assert verify(made.store).findings == []
    assert same(all_changes(made.store), made.changes())


def test_a_new_timeline_may_begin_before_the_end_of_the_log() -> None:
    """GIVEN a log that ends with WAL without changes WHEN the next timeline begins before it
    THEN the log goes back to where that begins, is valid, and keeps its id."""
    made = TestLog(log_id="5f0c2a9e")
    made.append(transaction(0))
    made.progress(0x1180)
    made.appender.change_identity(replace(IDENTITY, timeline=2), end_lsn=Lsn(0x1150))
    assert made.log().end().end_lsn == 0x1150
    assert verify(made.store).findings == []
    made.session.sent.clear()
    made.append(transaction(1))
    assert same(all_changes(made.store), made.changes())
    assert verify(made.store).findings == []
    made.close()
    again = Appender.open(made.store, Lease.acquire(made.store), made.layout)
    assert again is not None
    assert again.mark.position == made.changes()[-1].position
    headers = [made.log().header(name) for name in list_segments(made.store)]
    assert [header.identity.timeline for header in headers] == [1, 2]
    assert {header.log_id for header in headers} == {again.log_id} == {"5f0c2a9e"}
