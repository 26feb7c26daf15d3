"""Segment names, headers and walks."""

from __future__ import annotations

import random

import pytest

from tailrace.errors import CorruptError, MalformedError
from tailrace.log.format import segment
from tailrace.log.format.segment import (
    SegmentName,
    another_entry_after,
    list_segments,
    read_header,
    walk,
)
from tailrace.position import Lsn
from tailrace.testing import MemoryStore
from tests.fix_log import TestLog, insert, random_log, relation, transaction

NAME = SegmentName(42, Lsn(0x15D3A28))


def test_names_sort_and_contain_their_first_lsn() -> None:
    assert NAME.file == "0000000042-00000000015d3a28.seg"
    assert NAME.index == "0000000042-00000000015d3a28.idx"
    assert SegmentName(9, Lsn(0)).file < SegmentName(10, Lsn(0)).file


def test_listing_sorts_and_leaves_other_files_alone() -> None:
    names = [SegmentName(number, Lsn(number)) for number in (3, 1, 2)]
    files = {name.file: b"" for name in names} | {"lock": b"", "durable": b"", "x.idx": b""}
    assert list_segments(MemoryStore.holding(files)) == sorted(names)


@pytest.mark.parametrize(
    "name",
    [
        "copy.seg",
        ".seg",
        "1-00000000015d3a28.seg",
        "0000000001-zzzzzzzzzzzzzzzz.seg",
        "0000000001-0x000000000000001.seg"[:27] + ".seg",
        "0000000001--000000000000001.seg",
        "0000000001-00000000015D3A28.seg",
        "0000000001-00000000015d3a28 (copy).seg",
    ],
)
def test_an_invalid_segment_name_is_corruption(name: str) -> None:
    with pytest.raises(CorruptError, match="name"):
        list_segments(MemoryStore.holding({name: b""}))


@pytest.mark.parametrize("numbers", [(1, 3), (1, 2, 4), (1, 1)])
def test_a_hole_or_a_double_is_corruption(numbers: tuple[int, ...]) -> None:
    files = {SegmentName(number, Lsn(at)).file: b"" for at, number in enumerate(numbers, start=1)}
    with pytest.raises(CorruptError, match="does not follow"):
        list_segments(MemoryStore.holding(files))


def test_a_listing_in_the_middle_of_a_deletion_is_made_again() -> None:
    names = [SegmentName(number, Lsn(number)).file for number in (1, 2, 3)]

    class Deleting(MemoryStore):
        calls = 0

        def names(self) -> list[str]:
            """The first listing saw segment 1, and then 1 and 2 went away."""
            self.calls += 1
            return [names[0], names[2]] if self.calls == 1 else [names[2]]

    assert [name.sequence for name in list_segments(Deleting())] == [3]


def test_a_header_must_be_the_one_of_its_name(made: TestLog) -> None:
    (name,) = list_segments(made.store)
    header, size = read_header(made.store, name)
    assert header.sequence == 1
    assert size < made.store.size(name.file)
    data = made.store.files()[name.file]
    for other in (SegmentName(2, name.base_lsn), SegmentName(1, Lsn(7))):
        store = MemoryStore.holding({other.file: data})
        with pytest.raises(MalformedError, match="names segment 1"):
            read_header(store, other)


def test_a_walk_gives_every_entry_and_its_place(made: TestLog) -> None:
    (name,) = list_segments(made.store)
    _, first = read_header(made.store, name)
    placed = list(walk(made.store, name, first))
    assert placed[0].start == first
    assert [one.end for one in placed[:-1]] == [one.start for one in placed[1:]]
    assert placed[-1].end == made.store.size(name.file)
    assert [one.entry.body for one in placed[1:]] == [one.body for one in made.entries]


def test_a_walk_without_bodies_gives_the_same_headers(made: TestLog) -> None:
    (name,) = list_segments(made.store)
    _, first = read_header(made.store, name)
    quick = list(walk(made.store, name, first, bodies=False))
    full = list(walk(made.store, name, first))
    assert [(one.start, one.end, one.entry.last) for one in quick] == [
        (one.start, one.end, one.entry.last) for one in full
    ]
    assert all(one.entry.body == b"" for one in quick)


@pytest.mark.parametrize("read_ahead", [1, 112, 113, 300, 1000])
def test_entries_larger_than_the_window_are_read(
    monkeypatch: pytest.MonkeyPatch, read_ahead: int
) -> None:
    monkeypatch.setattr(segment, "_READ_AHEAD_BYTES", max(read_ahead, 112))
    made = random_log(random.Random(read_ahead), segment_bytes=1 << 20)
    (name,) = list_segments(made.store)
    _, first = read_header(made.store, name)
    bodies = [placed.entry.body for placed in walk(made.store, name, first)]
    assert bodies[1:] == [entry.body for entry in made.entries]


def test_a_walk_stops_at_its_end(made: TestLog) -> None:
    (name,) = list_segments(made.store)
    _, first = read_header(made.store, name)
    second = list(walk(made.store, name, first))[2].start
    assert len(list(walk(made.store, name, first, second))) == 2
    with pytest.raises(MalformedError, match="ends inside"):
        list(walk(made.store, name, first, second - 1))


def test_an_end_after_the_end_of_the_file_is_malformed(made: TestLog) -> None:
    (name,) = list_segments(made.store)
    _, first = read_header(made.store, name)
    with pytest.raises(MalformedError):
        list(walk(made.store, name, first, made.store.size(name.file) + 500))


def test_a_valid_entry_after_damage_is_found_at_any_distance(made: TestLog) -> None:
    (name,) = list_segments(made.store)
    _, first = read_header(made.store, name)
    places = list(walk(made.store, name, first))
    assert another_entry_after(made.store, name, places[0].start)
    assert another_entry_after(made.store, name, places[-2].start)
    assert another_entry_after(made.store, name, places[-2].start + 50)
    assert not another_entry_after(made.store, name, places[-1].start)
    assert not another_entry_after(made.store, name, places[-1].start + 50)


def test_the_magic_without_an_entry_is_not_an_entry() -> None:
    made = TestLog()
    made.append(transaction(0, insert(relation(1), 1, "TRen" * 100)))
    (name,) = list_segments(made.store)
    _, first = read_header(made.store, name)
    assert not another_entry_after(made.store, name, list(walk(made.store, name, first))[1].start)
