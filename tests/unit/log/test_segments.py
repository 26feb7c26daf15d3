"""Segments as readers see them: up to the mark, and while retention deletes."""

from __future__ import annotations

import pytest

from tailrace.errors import ConfigError, CorruptError, PositionLostError
from tailrace.log.format import mark as marks
from tailrace.log.format.segment import list_segments
from tailrace.log.segments import Segments
from tailrace.testing import MemoryStore
from tests.fix_log import TestLog, transaction


def several(count: int = 4) -> TestLog:
    """A log with one transaction per segment."""
    made = TestLog(segment_bytes=1)
    made.append_all(transaction(number) for number in range(count))
    return made


def test_an_empty_folder_has_no_segments() -> None:
    with pytest.raises(ConfigError, match="there is no log"):
        Segments(MemoryStore()).segments()


def test_segments_after_the_mark_are_not_visible() -> None:
    made = several()
    old = made.appender.mark
    made.append(transaction(9))
    made.store.write_atomic(marks.NAME, old.encode())
    segments = Segments(made.store)
    assert len(segments.visible_segments()) == len(segments.segments()) - 1


def test_the_end_of_a_new_log_without_a_mark() -> None:
    made = TestLog()
    start = made.appender.mark
    made.store.remove(marks.NAME)
    end = Segments(made.store).end()
    assert (end.position, end.end_lsn) == (start.position, start.end_lsn)


def test_a_log_with_entries_needs_its_mark() -> None:
    made = several()
    made.store.remove(marks.NAME)
    with pytest.raises(CorruptError, match="no durable mark"):
        Segments(made.store).end()


def test_a_segment_that_retention_removes_is_lost() -> None:
    made = several()
    segments, end = Segments(made.store), Segments(made.store).end()
    first, second = list_segments(made.store)[:2]
    start = segments.first_entry(first)
    made.store.remove(first.file)
    with pytest.raises(PositionLostError, match=f"removed {first.file}"):
        list(segments.entries(first, start, end))
    made.store.remove(second.file)
    with pytest.raises(PositionLostError, match=f"removed {second.file}"):
        segments.header(second)


def test_an_offset_without_an_entry_is_corrupt() -> None:
    made = several()
    segments, end = Segments(made.store), Segments(made.store).end()
    last = list_segments(made.store)[-1]
    with pytest.raises(CorruptError, match=f"no entry at byte {end.offset}"):
        segments.entry_at(last, end.offset, end)
