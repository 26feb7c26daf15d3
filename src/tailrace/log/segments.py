"""The segments of a log as readers see them: up to the durable mark.

The step between `format` (one file) and `reader` (positions): headers, entries at an offset, index
rows, the end of the log. Readers run while the appender and retention run, so a segment that
disappears is `PositionLostError` and bytes after the mark do not count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.errors import ConfigError, CorruptError, MalformedError, PositionLostError
from tailrace.log.format import index
from tailrace.log.format import mark as marks
from tailrace.log.format.mark import Mark
from tailrace.log.format.segment import Placed, SegmentName, list_segments, read_header, walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.log.format.entry import Entry
    from tailrace.log.format.layout import SegmentHeader
    from tailrace.log.store import Store
    from tailrace.position import Lsn, Position

_ONE_ENTRY_BYTES = 1 << 14
_START_CAPTURE = "Start `tailrace capture` once: it recovers the log and writes the mark."


class Segments:
    """Read access to the segments of one log."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._headers: dict[SegmentName, tuple[SegmentHeader, int]] = {}

    def segments(self) -> list[SegmentName]:
        """All segments, oldest first; the last ones may hold nothing visible yet."""
        names = list_segments(self._store)
        if not names:
            raise ConfigError(f"there is no log in {self._store}")
        return names

    def visible_segments(self, end: Mark | None = None) -> list[SegmentName]:
        """The segments up to the durable mark; recovery may still remove those after it."""
        end = end or self.end()
        names = [name for name in self.segments() if name.sequence <= end.sequence]
        if not names or names[-1].sequence != end.sequence:
            raise CorruptError(
                f"the durable mark is in segment {end.sequence}, which is missing",
                hint=_START_CAPTURE,
            )
        if end.offset < self.first_entry(names[-1]):
            raise CorruptError("the durable mark is before the first entry of its segment")
        return names

    def opens_whole(self, name: SegmentName) -> bool:
        """Whether a segment begins between two transactions."""
        return self.entry_at(name, self.first_entry(name), self.end()).ends

    def header(self, name: SegmentName) -> SegmentHeader:
        """The header of a segment."""
        return self._header(name)[0]

    def first_entry(self, name: SegmentName) -> int:
        """The offset of the first entry, after the header."""
        return self._header(name)[1]

    def _header(self, name: SegmentName) -> tuple[SegmentHeader, int]:
        if name not in self._headers:
            try:
                self._headers[name] = read_header(self._store, name)
            except MalformedError as error:
                raise CorruptError(f"{name.file}: {error}", hint=error.hint) from error
            except FileNotFoundError as error:
                raise PositionLostError(f"retention has just removed {name.file}") from error
        return self._headers[name]

    @property
    def id(self) -> str:
        """The id of the log. Only a log of the same id gives its positions the same meaning."""
        return self.header(self.segments()[0]).log_id

    def earliest(self) -> Position:
        """The position before the first change in the log."""
        return self.header(self.segments()[0]).base

    def end(self) -> Mark:
        """The end of what readers may read: whole and durable transactions.

        Where the log is `visible` up to a quorum of followers, its end is there.
        """
        return marks.read(self._store, marks.VISIBLE) or self.durable_end()

    def durable_end(self) -> Mark:
        """The end of the whole and durable transactions."""
        # The appender writes the mark right after the first segment. A reader that finds the
        # segment without a mark and with more than its opening reads the mark once more.
        return marks.read(self._store) or self._end_of_new_log() or self._mark_or_raise()

    def _mark_or_raise(self) -> Mark:
        mark = marks.read(self._store)
        if mark is None:
            raise CorruptError("the log has no durable mark", hint=_START_CAPTURE)
        return mark

    def _end_of_new_log(self) -> Mark | None:
        """The end of a log that was created and never appended to."""
        first, *others = self.segments()
        header, size = self._header(first)
        opening = next(walk(self._store, first, size, bodies=False), None)
        if others or opening is None or opening.end != self._store.size(first.file):
            return None
        return Mark(
            sequence=first.sequence,
            offset=size,
            position=header.base,
            end_lsn=header.base_end_lsn,
            time=header.base_time,
            epoch=header.epoch,
        )

    def timeline(self, end: Mark) -> int:
        """The timeline of PostgreSQL that the log follows at its end."""
        return self.header(self.visible_segments(end)[-1]).identity.timeline

    def end_of_timeline(self, timeline: int) -> Lsn | None:
        """Where the log has left a timeline for a later one; None if it still follows it."""
        for name in self.visible_segments(self.end()):
            header = self.header(name)
            if header.identity.timeline > timeline:
                return header.base_end_lsn
        return None

    def index_rows(self, name: SegmentName, end: Mark) -> list[index.Row]:
        """The index rows of the visible part of a segment, by offset."""
        rows = index.read(self._store, name.index)
        limit = self._limit(name, end)
        return sorted((row for row in rows if row.offset < limit), key=lambda row: row.offset)

    def indexed_entry(self, name: SegmentName, row: index.Row, end: Mark) -> Entry | None:
        """The entry that a row points at; None if the row is wrong. An index is only a hint."""
        try:
            entry = self.entry_at(name, row.offset, end)
        except CorruptError:
            return None
        fits = (entry.first, bool(entry.schemas)) == (row.first, row.schemas)
        return entry if fits else None

    def entry_at(self, name: SegmentName, offset: int, end: Mark) -> Entry:
        """The entry at an offset."""
        for placed in self.entries(name, offset, end, window_bytes=_ONE_ENTRY_BYTES):
            return placed.entry
        raise CorruptError(f"{name.file} has no entry at byte {offset}")

    def entries(
        self,
        name: SegmentName,
        start: int,
        end: Mark,
        *,
        bodies: bool = True,
        window_bytes: int | None = None,
    ) -> Iterator[Placed]:
        """The visible entries of a segment from an offset on."""
        limit = self._limit(name, end)
        try:
            yield from walk(
                self._store, name, start, limit, bodies=bodies, window_bytes=window_bytes
            )
        except MalformedError as error:
            raise CorruptError(f"{name.file}: {error}", hint=error.hint) from error
        except FileNotFoundError as error:
            raise PositionLostError(f"retention removed {name.file} while it was read") from error

    def _limit(self, name: SegmentName, end: Mark) -> int:
        if name.sequence == end.sequence:
            return end.offset
        try:
            return self._store.size(name.file)
        except FileNotFoundError as error:
            raise PositionLostError(f"retention removed {name.file} while it was read") from error
