"""The newest changes of a log, backwards from its end, and the place of one change.

For people who look: a page of changes costs at most a fixed number of rows and bytes, whatever the
size of the log. Entries are found by their headers, from the index on, and only those are decoded
that may be shown:

    index rows      |--------------|--------------|-------- end
    headers                        e1   e2   e3   e4  e5
    decoded            3rd window  [e1] [e2, e3]  [e4, e5]  1st window
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.errors import ConfigError, PositionLostError
from tailrace.log.changes import read_changes
from tailrace.position import MAX_LSN, Lsn, Position

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tailrace.change import Change
    from tailrace.log.format.entry import Entry
    from tailrace.log.format.mark import Mark
    from tailrace.log.format.segment import Placed, SegmentName
    from tailrace.log.reader import Log

MAX_ROWS = 10_000
MAX_BYTES = 8 << 20
"""Stored bytes. One entry is read whole, whatever its size."""
_FIRST_WINDOW, _WINDOW_BYTES = 100, 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Newest:
    """Changes, the newest first."""

    changes: list[Change]
    older: Position | None
    """The next page has changes before this one; None if the log has no more."""
    rows: int
    """How many changes were read for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a change is."""

    segment: SegmentName
    offset: int
    bytes: int
    entry: Entry


def newest(
    log: Log,
    takes: Callable[[Change], bool],
    *,
    limit: int,
    before: Position | None = None,
    max_rows: int = MAX_ROWS,
    max_bytes: int = MAX_BYTES,
) -> Newest:
    """The last changes before a position that are taken, and where to go on."""
    found: list[Change] = []
    rows = size = 0
    for after, first, upto, count, stored in _windows(log, log.end(), before):
        rows, size = rows + count, size + stored
        window = [
            change
            for change in read_changes(log, after, upto)
            if (before is None or change.position < before) and takes(change)
        ]
        found += reversed(window)
        if len(found) > limit:
            return Newest(changes=found[:limit], older=found[limit - 1].position, rows=rows)
        if rows >= max_rows or size >= max_bytes:
            return Newest(changes=found, older=first, rows=rows)
    return Newest(changes=found, older=None, rows=rows)


def place_of(log: Log, position: Position) -> tuple[Place, Change]:
    """A change and the entry that it is in. Raises ConfigError if the log does not hold it."""
    try:
        for name, after, placed in _entries_before(log, log.end(), _next(position)):
            if placed.entry.last < position:
                break
            for change in read_changes(log, after, position):
                if change.position == position:
                    size = placed.end - placed.start
                    entry = placed.entry
                    return Place(segment=name, offset=placed.start, bytes=size, entry=entry), change
            break
    except PositionLostError:
        pass
    raise ConfigError(
        f"there is no change {position.event_id} in the log",
        hint=f"The log begins after {log.earliest()} and ends at {log.end().position}.",
    )


def _windows(
    log: Log, end: Mark, before: Position | None
) -> Iterator[tuple[Position, Position, Position, int, int]]:
    """Ranges `(after, upto]`, the newest first, with their first change, rows and stored bytes."""
    after = first = upto = end.position
    rows, size, wanted = 0, 0, _FIRST_WINDOW
    for _, after, placed in _entries_before(log, end, before):
        if not rows:
            upto = placed.entry.last
        first = placed.entry.first
        rows += placed.entry.changes
        size += placed.end - placed.start
        if rows >= wanted or size >= _WINDOW_BYTES:
            yield after, first, upto, rows, size
            rows, size, wanted = 0, 0, 2 * wanted
    if rows:
        yield after, first, upto, rows, size


def _entries_before(
    log: Log, end: Mark, before: Position | None
) -> Iterator[tuple[SegmentName, Position, Placed]]:
    """The entries with changes before a position, the newest first, each with what it follows."""
    for name in reversed(log.visible_segments(end)):
        base = log.header(name).base
        if before is not None and base >= before:
            continue
        for start, stop in _pieces(log, name, end, before):
            found: list[Placed] = []
            for placed in log.entries(name, start, end, bodies=False):
                entry = placed.entry
                if stop is not None and placed.start >= stop:
                    break
                if before is not None and entry.first >= before:
                    break
                if entry.changes:
                    found.append(placed)
            for placed in reversed(found):
                yield name, max(base, previous(placed.entry.first)), placed


def _pieces(
    log: Log, name: SegmentName, end: Mark, before: Position | None
) -> Iterator[tuple[int, int | None]]:
    """Parts of a segment between two index rows, the newest first."""
    stop: int | None = None
    for row in reversed(log.index_rows(name, end)):
        if before is not None and row.first >= before:
            continue
        if log.indexed_entry(name, row, end) is not None:
            yield row.offset, stop
            stop = row.offset
    yield log.first_entry(name), stop


def previous(position: Position) -> Position:
    """The last position before one."""
    if position.ordinal:
        return Position(position.lsn, position.ordinal - 1)
    return Position(Lsn(max(position.lsn - 1, 0)), MAX_LSN)


def _next(position: Position) -> Position:
    """The first position after one."""
    return Position(position.lsn, position.ordinal + 1)
