"""Recovery: torn tails are cut, unfinished transactions forgotten, corruption refused."""

from __future__ import annotations

import random
import struct

import pytest

from tailrace.errors import CorruptError
from tailrace.log.format import index
from tailrace.log.format import mark as marks
from tailrace.log.format.layout import Codec, encode_entry
from tailrace.log.format.segment import SegmentName, list_segments, read_header, walk
from tailrace.log.recovery import recover
from tailrace.log.schema_book import SchemaBook
from tailrace.position import Lsn
from tailrace.testing import MemoryStore
from tests.fix_log import (
    TestLog,
    all_changes,
    insert,
    random_log,
    relation,
    transaction,
)

Files = dict[str, bytes]


def flipped(files: Files, name: str, at: int) -> Files:
    data = files[name]
    return files | {name: data[:at] + bytes((data[at] ^ 0x20,)) + data[at + 1 :]}


def last_segment(files: Files) -> str:
    return max(name for name in files if name.endswith(".seg"))


def entry_bounds(files: Files, file: str) -> list[tuple[int, int]]:
    store = MemoryStore.holding(files)
    (name,) = [name for name in list_segments(store) if name.file == file]
    _, first = read_header(store, name)
    return [(placed.start, placed.end) for placed in walk(store, name, first)]


def assert_refused(files: Files, match: str | None = None) -> None:
    """CORRUPT, and every byte as it was."""
    store = MemoryStore.holding(files)
    with pytest.raises(CorruptError, match=match):
        recover(store)
    assert store.files() == files


def test_an_empty_folder_recovers_to_none() -> None:
    assert recover(MemoryStore()) is None


def test_a_clean_log_is_left_as_it_is(made: TestLog) -> None:
    before = made.store.files()
    state = recover(made.store)
    assert state is not None
    assert state.mark == made.appender.mark
    assert state.identity == made.appender.identity
    assert made.store.files() == before


@pytest.mark.parametrize("codec", list(Codec))
def test_a_tail_torn_anywhere_is_cut_back_to_the_last_transaction(codec: Codec) -> None:
    made = TestLog(codec=codec)
    made.append(transaction(0), transaction(1))
    before, mark, expected = made.store.files(), made.appender.mark, made.changes()
    tail = b"".join(encode_entry(made.whole(transaction(2)), epoch=1, codec=codec))
    file = last_segment(before)
    for size in range(1, len(tail)):
        store = MemoryStore.holding(before | {file: before[file] + tail[:size]})
        state = recover(store)
        assert state is not None
        assert state.mark == mark
        assert store.files() == before
        assert all_changes(store) == expected


def test_a_tail_of_zeros_or_noise_is_cut() -> None:
    made = TestLog()
    made.append(transaction(0))
    before = made.store.files()
    file = last_segment(before)
    for tail in (bytes(5000), random.Random(1).randbytes(5000)):
        store = MemoryStore.holding(before | {file: before[file] + tail})
        recover(store)
        assert store.files() == before


def test_a_tail_that_is_whole_but_was_never_published_counts() -> None:
    """The process died between the sync and the mark: capture may have acknowledged it."""
    made = TestLog()
    made.append(transaction(0))
    before = made.store.files()
    made.append(transaction(1))
    store = MemoryStore.holding(made.store.files() | {marks.NAME: before[marks.NAME]})
    state = recover(store)
    assert state is not None
    assert state.mark == made.appender.mark
    assert all_changes(store) == made.changes()


def test_a_flipped_byte_anywhere_in_a_middle_entry_is_corruption(made: TestLog) -> None:
    files = made.store.files()
    file = last_segment(files)
    start, end = entry_bounds(files, file)[2]
    for at in range(start, end):
        assert_refused(flipped(files, file, at), f"{file} at byte {start}")


def test_a_flipped_byte_is_corruption_without_the_mark_too(made: TestLog) -> None:
    """A valid entry after the damage proves that it was durable."""
    files = made.store.files()
    del files[marks.NAME]
    file = last_segment(files)
    start, end = entry_bounds(files, file)[2]
    for at in range(start, end):
        assert_refused(flipped(files, file, at))


def test_a_flipped_byte_in_the_last_entry_is_corruption_when_the_mark_vouches_for_it(
    made: TestLog,
) -> None:
    files = made.store.files()
    file = last_segment(files)
    start, end = entry_bounds(files, file)[-1]
    for at in range(start, end):
        assert_refused(flipped(files, file, at))


def test_a_flipped_byte_anywhere_in_the_header_or_the_opening_is_corruption() -> None:
    """Both were written in one atomic step, so they cannot be torn, mark or no mark."""
    made = TestLog(segment_bytes=1)
    made.append(transaction(0))
    made.append(transaction(1))
    complete = made.store.files()
    file = last_segment(complete)
    opening = entry_bounds(complete, file)[0][1]
    cut = complete | {file: complete[file][:opening]}
    for files in (complete, {name: data for name, data in cut.items() if name != marks.NAME}):
        for at in range(opening):
            assert_refused(flipped(files, file, at))


@pytest.mark.parametrize("size", [0, 5, 20, 100])
def test_a_segment_shorter_than_its_opening_is_corruption(size: int) -> None:
    made = TestLog(segment_bytes=1)
    made.append(transaction(0))
    files = made.store.files()
    file = last_segment(files)
    assert_refused(files | {file: files[file][:size]})


def test_a_header_without_an_opening_is_corruption(made: TestLog) -> None:
    files = made.store.files()
    file = last_segment(files)
    header_bytes = entry_bounds(files, file)[0][0]
    del files[marks.NAME]
    assert_refused(files | {file: files[file][:header_bytes]}, "no first entry")


def test_a_foreign_file_with_a_segments_name_is_corruption(made: TestLog) -> None:
    files = made.store.files() | {SegmentName(2, Lsn(9)).file: b"#!/bin/sh\necho hello\n" * 10}
    assert_refused(files, "magic")


@pytest.mark.parametrize("with_mark", [True, False])
def test_a_segment_from_the_future_is_never_cut(made: TestLog, with_mark: bool) -> None:
    files = made.store.files()
    if not with_mark:
        del files[marks.NAME]
    file = last_segment(files)
    data = files[file]
    future = data[:8] + struct.pack("<H", 2) + b"anything at all" * 20
    assert_refused(files | {file: future}, "version 2; this release reads version 1")


def test_damage_in_an_earlier_segment_waits_for_its_reader() -> None:
    """Recovery reads only the last segment; a reader of the damage gets an error."""
    log = TestLog(segment_bytes=1)
    for number in range(3):
        log.append(transaction(number))
    files = log.store.files()
    early = sorted(name for name in files if name.endswith(".seg"))[1]
    start, end = entry_bounds(files, early)[-1]
    for at in range(start, end, 7):
        store = MemoryStore.holding(flipped(files, early, at))
        assert recover(store) is not None
        with pytest.raises(CorruptError, match=early):
            all_changes(store)


def test_a_damaged_mark_is_written_anew(made: TestLog) -> None:
    files = made.store.files()
    for at in range(len(files[marks.NAME])):
        store = MemoryStore.holding(flipped(files, marks.NAME, at))
        recover(store)
        assert store.files() == files


@pytest.mark.parametrize("lost", ["durable", ".idx"])
def test_a_lost_mark_or_index_is_written_anew(made: TestLog, lost: str) -> None:
    files = made.store.files()
    store = MemoryStore.holding(
        {name: data for name, data in files.items() if not name.endswith(lost)}
    )
    recover(store)
    assert store.files() == files


def test_a_damaged_index_is_written_anew(made: TestLog) -> None:
    files = made.store.files()
    name = next(name for name in files if name.endswith(".idx"))
    for at in range(len(files[name])):
        store = MemoryStore.holding(flipped(files, name, at))
        recover(store)
        assert store.files() == files


def test_a_log_that_ends_before_its_mark_is_corrupt(made: TestLog) -> None:
    files = made.store.files()
    file = last_segment(files)
    start, end = entry_bounds(files, file)[-1]
    for size in range(start, end):
        assert_refused(files | {file: files[file][:size]})


def test_a_mark_without_a_segment_is_corrupt(made: TestLog) -> None:
    assert_refused({marks.NAME: made.store.files()[marks.NAME]}, "no segment")


def test_a_last_segment_that_is_missing_is_corrupt() -> None:
    made = TestLog(segment_bytes=1)
    for number in range(3):
        made.append(transaction(number))
    files = made.store.files()
    del files[last_segment(files)]
    assert_refused(files, "before its durable mark")


@pytest.mark.parametrize("segment_bytes", [1, 400, 1 << 20])
@pytest.mark.parametrize("pieces", range(1, 9))
def test_an_unfinished_transaction_is_cut_off_over_any_number_of_segments(
    segment_bytes: int, pieces: int
) -> None:
    made = TestLog(segment_bytes=segment_bytes)
    made.append(transaction(0))
    mark, expected = made.appender.mark, made.changes()
    big = made.pieces(transaction(1, rows=8), *range(2, 10))
    for entry in big[:pieces]:
        made.appender.append(entry)
    made.close()
    state = recover(made.store)
    assert state is not None
    assert (state.mark.position, state.mark.end_lsn) == (mark.position, mark.end_lsn)
    assert all_changes(made.store) == expected
    assert list_segments(made.store)[-1] == state.segment
    assert made.store.size(state.segment.file) == state.mark.offset


def test_schemas_of_an_unfinished_transaction_are_forgotten() -> None:
    made = TestLog(segment_bytes=1)
    made.append(transaction(0))
    changed = relation(1, version=4)
    made.append_pieces(transaction(1, insert(changed, 1), insert(changed, 2)), 3, ending=False)
    made.close()
    state = recover(made.store)
    assert state is not None
    assert all(b"c4\0" not in message for message in state.schemas.messages())


def test_unfinished_segments_are_kept_when_the_one_before_them_is_corrupt() -> None:
    """Corrupt means that nothing on disk is touched, not even what would go anyway."""
    made = TestLog(segment_bytes=800)
    made.append(transaction(0))
    made.append_pieces(transaction(1, rows=8), 3, 4, 5, 6, 7, ending=False)
    files = made.store.files()
    names = sorted(name for name in files if name.endswith(".seg"))
    assert made.appender.mark.sequence == 1 < len(names)
    start, _ = entry_bounds(files, names[0])[1]
    assert_refused(flipped(files, names[0], start + 120))


def test_a_log_of_which_nothing_is_whole_is_corrupt() -> None:
    made = TestLog(segment_bytes=1)
    made.append(transaction(0))
    made.append_pieces(transaction(1, rows=4), 3, 4, ending=False)
    files = made.store.files()
    names = sorted(name for name in files if name.endswith(".seg"))
    assert_refused({names[-1]: files[names[-1]]}, "holds no whole transaction")


def test_recovering_twice_is_recovering_once() -> None:
    for seed in range(20):
        made = random_log(random.Random(seed))
        made.append_pieces(transaction(1000, rows=5), 3, 4, ending=False)
        made.close()
        recover(made.store)
        once = made.store.files()
        recover(made.store)
        assert made.store.files() == once


def test_the_rebuilt_index_is_a_right_one() -> None:
    made = random_log(random.Random(3), segment_bytes=1 << 20)
    (name,) = list_segments(made.store)
    made.store.remove(name.index)
    recover(made.store)
    entries = {placed.start: placed.entry for placed in walk(made.store, name, entry_start(made))}
    rows = index.read(made.store, name.index)
    assert rows
    for row in rows:
        assert row.first == entries[row.offset].first
        assert row.schemas == bool(entries[row.offset].schemas)


def entry_start(made: TestLog) -> int:
    (name,) = list_segments(made.store)
    return read_header(made.store, name)[1]


def test_the_schema_book_keeps_the_newest_of_each_types_first() -> None:
    book = SchemaBook()
    for message in (b"R0001old", b"Y0009mood", b"R0002two", b"R0001new"):
        book.note(message)
    assert book.messages() == [b"Y0009mood", b"R0001new", b"R0002two"]
