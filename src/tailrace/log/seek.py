"""Seeking: from a position in the stream to a segment, an offset, and the schemas in force there.

The index makes a seek cheap: it jumps to the last indexed entry before the position and collects
schemas only from the entries that the index marks as having some. A reader mostly continues where
its last range ended, so the last few places are remembered and need no seek at all.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.errors import PositionLostError
from tailrace.log.schema_book import SchemaBook
from tailrace.position import ORIGIN, Position

if TYPE_CHECKING:
    from tailrace.log.format import index
    from tailrace.log.format.mark import Mark
    from tailrace.log.format.segment import SegmentName
    from tailrace.log.segments import Segments

_REMEMBERED = 4


@dataclass(frozen=True, slots=True)
class SeekResult:
    """Where the entries after a position begin, and the schemas in force there."""

    name: SegmentName
    offset: int
    schemas: SchemaBook


class Seeker:
    """Finds positions in the segments of one log."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self._remembered: dict[Position, SeekResult] = {}

    def find(self, after: Position, end: Mark) -> tuple[SeekResult, list[SegmentName]]:
        """The place after a position, and the segments from there on."""
        names = self._segments.visible_segments(end)
        bases = [self._segments.header(name).base for name in names]
        if after < bases[0] and after != ORIGIN:
            raise PositionLostError(
                f"position {after} is no longer in the log, which begins after {bases[0]}"
            )
        known = self._remembered.get(after)
        if known is not None and known.name in names:
            return known, names[names.index(known.name) :]
        first = max(bisect.bisect_right(bases, after) - 1, 0)
        place = self._seek(names[first], after, end)
        self.remember(after, place)
        return place, names[first:]

    def remember(self, after: Position, place: SeekResult) -> None:
        """Keep a place that the next read will probably start from."""
        self._remembered.pop(after, None)
        self._remembered[after] = place
        while len(self._remembered) > _REMEMBERED:
            del self._remembered[next(iter(self._remembered))]

    def _seek(self, name: SegmentName, after: Position, end: Mark) -> SeekResult:
        """The place after a position in a segment, from the best index row on."""
        segments = self._segments
        rows = [row for row in segments.index_rows(name, end) if row.first <= after]
        jump = self._jump(name, rows, end)
        start, schemas = jump or (segments.first_entry(name), SchemaBook())
        for placed in segments.entries(name, start, end):
            if placed.entry.last > after:
                break
            schemas.note_entry(placed.entry)
            start = placed.end
        return SeekResult(name, start, schemas)

    def _jump(
        self, name: SegmentName, rows: list[index.Row], end: Mark
    ) -> tuple[int, SchemaBook] | None:
        """The offset of the last row and the schemas before it; None if a row is wrong.

        Every entry with schemas has a row. So the schemas before the last row are those of the
        opening entry and of the rows marked with schemas:

            rows      100   400*  700   900     (* has schemas)
            reads     opening entry, 400, and 900 to check the row itself
        """
        if not rows:
            return None
        segments, schemas = self._segments, SchemaBook()
        schemas.note_entry(segments.entry_at(name, segments.first_entry(name), end))
        for row in rows:
            is_last = row is rows[-1]
            if not row.schemas and not is_last:
                continue
            entry = segments.indexed_entry(name, row, end)
            if entry is None:
                return None
            if not is_last:
                schemas.note_entry(entry)
        return rows[-1].offset, schemas
