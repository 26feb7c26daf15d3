"""Reading: ranges and starting points against brute force, the mark as the border, relations."""

from __future__ import annotations

import random
import threading
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.errors import ConfigError, CorruptError, PositionLostError
from tailrace.log.changes import Decoder, read_changes
from tailrace.log.format import index
from tailrace.log.format import mark as marks
from tailrace.log.format.entry import Kind
from tailrace.log.format.layout import Codec
from tailrace.log.format.segment import list_segments, read_header, walk
from tailrace.log.reader import AtLsn, AtTime, Earliest, Latest, Log
from tailrace.position import ORIGIN, Lsn, Position
from tailrace.testing import MemoryStore
from tests.chance import examples, seeds
from tests.fix_log import (
    SECOND,
    START,
    TIME,
    TestLog,
    all_changes,
    insert,
    random_log,
    relation,
    same,
    transaction,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tailrace.change import Change


@pytest.fixture
def dense(monkeypatch: pytest.MonkeyPatch) -> None:
    """An index row for nearly every entry, so that small logs make use of the index."""
    monkeypatch.setattr(index.IndexBuilder.__init__, "__kwdefaults__", {"every_bytes": 100})


def logs() -> st.SearchStrategy[TestLog]:
    return st.builds(
        lambda seed, segment_bytes, codec: random_log(
            random.Random(seed), segment_bytes=segment_bytes, codec=codec
        ),
        st.integers(0, 1 << 32),
        st.sampled_from([1, 300, 700, 1 << 20]),
        st.sampled_from(list(Codec)),
    )


def positions(made: TestLog) -> list[Position]:
    """Places on, between and around the changes."""
    found = [change.position for change in made.changes()]
    between = [Position(at.lsn, at.ordinal + 1) for at in found]
    before = [Position(Lsn(at.lsn - 1), 1 << 40) for at in found]
    return sorted({*found, *between, *before, made.log().earliest()})


def test_an_empty_folder_has_no_log(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ConfigError, match="no log in"):
            Log.open(folder)
    with pytest.raises(ConfigError, match="no log in memory"):
        Log(MemoryStore()).segments()


def test_a_mark_that_comes_into_being_meanwhile_counts(
    made: TestLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader may look between a log's first segment and its mark, and see the first entry."""
    mark = marks.read(made.store)
    answers = iter([None, None, mark])
    monkeypatch.setattr(marks, "read", lambda *_: next(answers))
    assert Log(made.store).end() == mark


def test_a_log_without_a_mark_hints_at_capture(made: TestLog) -> None:
    made.store.remove(marks.NAME)
    with pytest.raises(CorruptError, match="no durable mark") as caught:
        made.log().end()
    assert "tailrace capture" in caught.value.hint


@settings(max_examples=examples(0.4))
@given(logs(), st.data())
def test_any_range_is_what_a_filter_finds(made: TestLog, data: st.DataObject) -> None:
    places = positions(made)
    changes = made.changes()
    for _ in range(6):
        after = data.draw(st.sampled_from(places))
        upto = data.draw(st.none() | st.sampled_from(places))
        expected = [
            change
            for change in changes
            if after < change.position and (upto is None or change.position <= upto)
        ]
        assert same(list(read_changes(made.log(), after, upto)), expected)


@pytest.mark.usefixtures("dense")
def test_ranges_with_a_dense_index_too() -> None:
    for seed in range(4):
        made = random_log(random.Random(seed), entries=16, segment_bytes=2000)
        changes = made.changes()
        for after in positions(made):
            expected = [change for change in changes if change.position > after]
            assert same(list(read_changes(made.log(), after)), expected)


def test_ranges_put_together_are_the_whole() -> None:
    made = random_log(random.Random(8), entries=30)
    rng = random.Random(8)
    after = made.log().earliest()
    found: list[Change] = []
    for upto in sorted(rng.sample(positions(made), 10)):
        found += read_changes(made.log(), after, upto)
        after = upto
    found += read_changes(made.log(), after)
    assert same(found, made.changes())


def test_a_read_begins_with_the_schemas_in_force() -> None:
    made = random_log(random.Random(4), entries=20)
    for after in positions(made):
        first = next(made.log().read(after))
        assert first.kind is Kind.SCHEMA
        assert first.last == after


@pytest.mark.parametrize("segment_bytes", [700, 1 << 20])
@pytest.mark.usefixtures("dense")
def test_relations_in_force_do_not_depend_on_where_reading_begins(segment_bytes: int) -> None:
    """Schemas change again and again; a start in the middle decodes as from the beginning."""
    made = TestLog(segment_bytes=segment_bytes)
    for number in range(40):
        table = relation(number % 3 + 1, version=number // 7)
        made.append(transaction(number, insert(table, number), insert(relation(9), number)))
    changes = made.changes()
    assert all_changes(made.store) == changes
    for at, change in enumerate(changes):
        assert list(read_changes(made.log(), change.position)) == changes[at + 1 :]


def test_a_fragment_without_a_change_keeps_its_schemas_for_a_reader_before_it() -> None:
    made = TestLog()
    made.append(transaction(0))
    after = made.appender.mark.position
    made.append_pieces(transaction(1, insert(relation(2, 3), 1)), 1, 2)
    assert list(read_changes(made.log(), after)) == made.changes()[2:]


@pytest.mark.parametrize("seed", seeds(12, short=3))
def test_every_segment_decodes_alone(seed: int) -> None:
    made = random_log(random.Random(seed), entries=20, segment_bytes=400)
    changes = made.changes()
    for name in list_segments(made.store):
        base = made.log().header(name).base
        expected = [change for change in changes if change.position > base]
        assert same(all_changes(made.store), expected)
        if name.sequence < made.appender.mark.sequence:
            made.store.remove(name.file)
            made.store.remove(name.index)


def test_an_unfinished_transaction_is_not_seen() -> None:
    for segment_bytes in (1, 500, 1 << 20):
        made = TestLog(segment_bytes=segment_bytes)
        made.append(transaction(0))
        expected, log = made.changes(), made.log()
        end = log.end()
        pieces = made.pieces(transaction(1, rows=6), 2, 4, 6)
        for entry in pieces[:-1]:
            made.appender.append(entry)
            assert log.end() == made.log().end() == end
            for reader in (log, made.log()):
                assert list(read_changes(reader, reader.earliest())) == expected
                assert list(read_changes(reader, end.position)) == []
                assert reader.resolve(AtTime(transaction(1).time)) == end.position
        made.appender.append(pieces[-1])
        assert len(list(read_changes(log, end.position))) == 6


def test_a_reader_at_the_end_survives_a_roll_that_is_not_published_yet() -> None:
    """The new segment is there, the mark still stands in the old one."""
    made = TestLog(segment_bytes=1)
    made.append(transaction(0))
    end = made.log().end()
    made.append_pieces(transaction(1, rows=4), 3, ending=False)
    assert len(list_segments(made.store)) > end.sequence
    assert list(read_changes(made.log(), end.position)) == []


def test_a_reader_survives_segments_that_are_taken_back_and_made_again() -> None:
    """Two segments of one name, one after the other: nothing of the first may be remembered."""
    made = TestLog(segment_bytes=1)
    made.append(transaction(0))
    log = made.log()
    after = log.end().position
    made.append_pieces(transaction(1, rows=4), 2, 4, ending=False)
    assert list(read_changes(log, after)) == []
    made.appender.rewind()
    made.session.sent.clear()
    made.append_pieces(transaction(1, insert(relation(7, 5), 1), insert(relation(8, 9), 2)), 5)
    assert list(read_changes(log, after)) == made.changes()[2:]


def test_a_long_lived_reader_sees_what_comes(made: TestLog) -> None:
    log = made.log()
    after = log.end().position
    for number in range(3, 9):
        made.append(transaction(number))
        assert list(read_changes(log, after)) == made.units[-1].changes()
        after = log.end().position


def test_the_mark_may_not_point_out_of_the_log(made: TestLog) -> None:
    mark = made.appender.mark
    for sequence, offset in ((9, 50), (0, 50), (1, 3), (1, mark.offset - 1), (1, 1 << 40)):
        changed = marks.Mark(
            sequence=sequence, offset=offset, position=mark.position, end_lsn=mark.end_lsn,
            time=mark.time, epoch=1,
        )  # fmt: skip
        made.store.write_atomic(marks.NAME, changed.encode())
        with pytest.raises(CorruptError):
            all_changes(made.store)


def test_a_log_whose_first_mark_is_still_to_come_is_empty() -> None:
    made = TestLog()
    made.store.remove(marks.NAME)
    assert all_changes(made.store) == []
    assert made.log().end().position == made.appender.mark.position


@pytest.mark.usefixtures("dense")
def test_a_damaged_index_changes_nothing() -> None:
    made = random_log(random.Random(11), entries=14, segment_bytes=1500)
    files, changes = made.store.files(), made.changes()
    middle = changes[len(changes) // 2].position
    for name in (name for name in files if name.endswith(".idx")):
        data = files[name]
        damaged = [data[:at] + bytes((data[at] ^ 8,)) + data[at + 1 :] for at in range(len(data))]
        for content in (*damaged, b"", data[:30], bytes(400)):
            log = Log(MemoryStore.holding(files | {name: content}))
            found = list(read_changes(log, middle))
            assert same(found, [change for change in changes if change.position > middle])


@pytest.mark.usefixtures("dense")
def test_an_index_of_another_segment_does_not_mislead_readers() -> None:
    made = random_log(random.Random(12), entries=16, segment_bytes=1500)
    files, changes = made.store.files(), made.changes()
    indexes = [name for name in files if name.endswith(".idx")]
    for name in indexes:
        for other in indexes:
            log = Log(MemoryStore.holding(files | {name: files[other]}))
            for change in changes[:: len(changes) // 7]:
                found = list(read_changes(log, change.position))
                assert same(found, [one for one in changes if one.position > change.position])


def test_the_index_saves_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    made = TestLog()
    for number in range(300):
        made.append(transaction(number, insert(relation(1), number, "x" * 3000)))
    read = list[int]()
    plain = MemoryStore.read

    def counting(self: MemoryStore, name: str, offset: int, length: int) -> bytes:
        data = plain(self, name, offset, length)
        read.append(len(data) if name.endswith(".seg") else 0)
        return data

    monkeypatch.setattr(MemoryStore, "read", counting)
    monkeypatch.setattr("tailrace.log.format.segment._READ_AHEAD_BYTES", 8192)
    assert len(list(read_changes(made.log(), transaction(290).changes()[0].position))) == 9
    assert sum(read) < made.store.size(list_segments(made.store)[0].file) / 2


def test_earliest_and_latest(made: TestLog) -> None:
    log = made.log()
    assert log.resolve(Earliest()) == Position(Lsn(START - 1), 0)
    assert log.resolve(Latest()) == log.end().position


@settings(max_examples=examples(0.4))
@given(logs(), st.data())
def test_starting_at_an_lsn_is_starting_at_the_first_commit_from_there(
    made: TestLog, data: st.DataObject
) -> None:
    changes = made.changes()
    last = made.appender.mark.end_lsn
    lsn = Lsn(data.draw(st.integers(START, last + 10)))
    found = list(read_changes(made.log(), made.log().resolve(AtLsn(lsn))))
    assert same(found, [change for change in changes if change.position.lsn >= lsn])


@settings(max_examples=examples(0.4))
@given(logs(), st.data())
def test_starting_at_a_time_is_starting_at_the_first_transaction_from_then(
    made: TestLog, data: st.DataObject
) -> None:
    times = [unit.time for unit in made.units if unit.xid] or [TIME]
    near = [time + step for time in times for step in (-1, 0, 1)]
    micros = data.draw(st.sampled_from([*near, 0, -(1 << 60), 1 << 60]))
    start = next((u.lsn for u in made.units if u.xid and u.time >= micros), None)
    expected = [c for c in made.changes() if start is not None and c.position.lsn >= start]
    found = list(read_changes(made.log(), made.log().resolve(AtTime(micros))))
    assert same(found, expected)


@pytest.mark.usefixtures("dense")
def test_starting_at_a_time_with_a_dense_index_too() -> None:
    for seed in range(5):
        made = random_log(random.Random(seed), entries=16, segment_bytes=2000)
        for micros in {unit.time + step for unit in made.units for step in (-1, 0, 1)}:
            start = next((u.lsn for u in made.units if u.xid and u.time >= micros), None)
            expected = [c for c in made.changes() if start is not None and c.position.lsn >= start]
            found = list(read_changes(made.log(), made.log().resolve(AtTime(micros))))
            assert same(found, expected)


def without_first_segments(made: TestLog, count: int) -> Log:
    for name in list_segments(made.store)[:count]:
        made.store.remove(name.file)
    return made.log()


def test_a_position_that_retention_removed_is_lost() -> None:
    made = TestLog(segment_bytes=1)
    for number in range(6):
        made.append(transaction(number))
    log = without_first_segments(made, 3)
    base = log.earliest()
    assert base == Position(transaction(1).lsn, 1)
    for lost in (Position(base.lsn, 0), Position(Lsn(START - 1), 0)):
        with pytest.raises(PositionLostError, match="no longer in the log"):
            list(log.read(lost))
    with pytest.raises(PositionLostError):
        log.resolve(AtLsn(base.lsn))
    for micros in (0, TIME, TIME + SECOND):
        with pytest.raises(PositionLostError, match="retention has removed"):
            log.resolve(AtTime(micros))
    assert log.resolve(AtTime(TIME + SECOND + 1)) < transaction(2).changes()[0].position
    for still in (base, log.resolve(AtLsn(Lsn(base.lsn + 1))), ORIGIN):
        assert list(read_changes(log, still)) == made.changes()[4:]


def test_a_segment_that_goes_while_it_is_read_is_lost() -> None:
    made = TestLog(segment_bytes=1)
    for number in range(6):
        made.append(transaction(number))
    log = made.log()
    entries = log.read(log.earliest())
    next(entries)
    without_first_segments(made, 5)
    with pytest.raises(PositionLostError, match="retention"):
        list(entries)


def test_a_mark_older_than_the_log_waits_for_capture() -> None:
    """After a power cut the mark may be that of a segment retention has deleted."""
    made = TestLog(segment_bytes=1)
    old = made.appender.mark
    for number in range(4):
        made.append(transaction(number))
    without_first_segments(made, 3)
    made.store.write_atomic(marks.NAME, old.encode())
    with pytest.raises(CorruptError, match="is in segment 1, which is missing") as caught:
        list(made.log().read(ORIGIN))
    assert "tailrace capture" in caught.value.hint


@pytest.mark.parametrize("seed", seeds(8, short=3))
def test_a_segment_cut_between_two_entries_is_noticed(seed: int) -> None:
    made = random_log(random.Random(seed), entries=20, segment_bytes=900)
    files = made.store.files()
    for name in list_segments(made.store)[:-1]:
        _, first = read_header(made.store, name)
        placed = list(walk(made.store, name, first))
        for cut, lost in pairwise(placed):
            if lost.entry.last == cut.entry.last:
                continue
            store = MemoryStore.holding(files | {name.file: files[name.file][: cut.end]})
            with pytest.raises(CorruptError, match="entries are missing"):
                all_changes(store)
            with pytest.raises(CorruptError, match="entries are missing"):
                list(read_changes(Log(store), cut.entry.last))


def test_waiting_ends_with_news_or_with_time(made: TestLog) -> None:
    log = made.log()
    end = log.end()
    assert log.wait(end.position, 0.01) == end
    assert log.wait(ORIGIN, 60) == end
    later = threading.Timer(0.05, lambda: made.append(transaction(3)))
    later.start()
    try:
        assert log.wait(end.position, 60).position > end.position
    finally:
        later.join()


def test_changes_of_one_read_decode_with_one_decoder(made: TestLog) -> None:
    entries = made.log().read(ORIGIN)
    assert list(Decoder().decode(entries)) == made.changes()


@given(logs(), st.integers(1, 20))
@settings(max_examples=examples(0.6))
def test_extents_cover_the_log_and_are_read_as_by_a_newcomer(made: TestLog, rows: int) -> None:
    reader = made.log()
    after, found, counted = reader.resolve(Earliest()), [], 0
    while after < reader.end().position:
        extent = reader.extent(after, rows=rows, size=1 << 40)
        assert extent.upto > after
        expected = list(read_changes(made.log(), after, extent.upto))
        assert same(list(read_changes(reader, after, extent.upto)), expected)
        assert extent.rows == len(expected)
        found += expected
        counted += extent.rows
        after = extent.upto
    assert same(found, made.changes())
    assert counted == len(made.changes())


def test_a_segment_of_a_later_release_is_refused_by_readers() -> None:
    made = TestLog(segment_bytes=1)
    for number in range(3):
        made.append(transaction(number))
    files = made.store.files()
    name = list_segments(made.store)[1].file
    store = MemoryStore.holding(files | {name: files[name][:8] + b"\x07\0" + files[name][10:]})
    with pytest.raises(CorruptError, match="version 7") as caught:
        all_changes(store)
    assert "upgrade" in caught.value.hint


@pytest.fixture
def appending(made: TestLog) -> Iterator[TestLog]:
    """A log that another thread appends to."""
    stopping = threading.Event()

    def run() -> None:
        number = 3
        while not stopping.is_set() and number < 4000:
            made.append(transaction(number))
            number += 1

    thread = threading.Thread(target=run)
    thread.start()
    yield made
    stopping.set()
    thread.join()


def test_reading_while_another_appends(appending: TestLog) -> None:
    log = appending.log()
    after, seen = log.earliest(), 0
    while seen < 400:
        for change in read_changes(log, after):
            number, row = divmod(seen, 2)
            assert change.position == Position(transaction(number).lsn, row)
            after, seen = change.position, seen + 1
