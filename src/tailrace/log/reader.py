"""Reading a log: from any process, while another process appends.

A reader sees whole, durable transactions and nothing else: it stops at the durable mark. Ranges
are half-open on the left, `(after, upto]`, so a reader resumes at the position of the last change
it took. `read` begins with a SCHEMA entry that states the relations and types in force, so that its
entries can be decoded without what precedes them.

>>> log = Log.open(Path("tailrace-data/log"))                            # doctest: +SKIP
>>> for entry in log.read(log.resolve(Earliest())):                     # doctest: +SKIP
...     print(entry.first, entry.last, entry.changes)
"""

from __future__ import annotations

import bisect
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from tailrace.errors import ConfigError, CorruptError, PositionLostError
from tailrace.log import awaited
from tailrace.log.format import mark as marks
from tailrace.log.format.entry import Entry, Kind
from tailrace.log.format.segment import Placed, SegmentName, list_segments
from tailrace.log.schema_book import read_relations
from tailrace.log.seek import Seeker, SeekResult
from tailrace.log.segments import Segments
from tailrace.log.start import AtLsn, AtTime, Earliest, Latest, Start
from tailrace.log.store import LocalStore, Store
from tailrace.position import Lsn, Position
from tailrace.wire.pgtime import PgTime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tailrace.log.format.mark import Mark
    from tailrace.log.watch import Watch
    from tailrace.schema import Relation, TypeName

__all__ = ["AtLsn", "AtTime", "Earliest", "Extent", "Latest", "Log", "Start"]

_BEGIN = ord("B")
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Extent:
    """A range of the log that ends with a whole transaction."""

    upto: Position
    rows: int
    bytes: int
    """Stored bytes, headers included."""


class Log(Segments):
    """Read access to a log, by position."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._seeker = Seeker(self)
        self._watch: Watch | None = None

    @classmethod
    def open(cls, folder: Path) -> Self:
        """The log in a local folder. Raises ConfigError if there is none."""
        log = cls(LocalStore(folder))
        if not list_segments(log._store):
            raise ConfigError(
                f"there is no log in {folder}",
                hint="Set --log or log.path to the log's folder. `tailrace capture` creates it.",
            )
        return log

    def wait(
        self, after: Position, timeout_s: float, *, clock: Callable[[], float] = time.monotonic
    ) -> Mark:
        """Wait until the log ends after a position, or until the timeout. Returns its end."""
        if self._watch is None:
            self._watch = self._store.watch(marks.for_readers(self._store))
        deadline = clock() + timeout_s
        while True:
            mark, left_s = self.end(), deadline - clock()
            if mark.position > after or left_s <= 0:
                return mark
            self._watch.wait(left_s)

    def wait_for_lsn(self, lsn: Lsn, wait: Callable[[float], bool]) -> bool:
        """Wait until capture has read the WAL up to an LSN, also if no change is there.

        `wait` sleeps for some seconds; False ends the wait.
        """
        if self.end().end_lsn < lsn and awaited.read(self._store) < lsn:
            awaited.ask(self._store, lsn)
        while self.end().end_lsn < lsn:
            if not wait(_POLL_S):
                return False
        return True

    def resolve(self, start: Start) -> Position:
        """The position after which `start` begins."""
        match start:
            case Earliest():
                return self.earliest()
            case Latest():
                return self.end().position
            case AtLsn(lsn):
                earliest = self.earliest()
                if lsn <= earliest.lsn:
                    raise PositionLostError(
                        f"{lsn} is no longer in the log, which begins after {earliest}"
                    )
                return _just_before(lsn)
            case AtTime(micros):
                return self._before_time(micros)

    def _before_time(self, micros: int) -> Position:
        end = self.end()
        names = self.visible_segments(end)
        oldest = self.header(names[0])
        if oldest.base_time >= micros and oldest.sequence > 1:
            raise PositionLostError(
                f"the log begins after {PgTime(oldest.base_time).to_datetime()}; retention has "
                f"removed changes committed from {PgTime(micros).to_datetime()} on"
            )
        later = [self.header(name).base_time for name in names[1:]]
        for name in names[bisect.bisect_left(later, micros) :]:
            for placed in self._entries_from_time(name, micros, end):
                lsn = _first_commit(placed.entry, micros)
                if lsn is not None:
                    return _just_before(lsn)
        return end.position

    def _entries_from_time(self, name: SegmentName, micros: int, end: Mark) -> Iterator[Placed]:
        """The entries of a segment, without most of those older than `micros`."""
        for row in reversed(self.index_rows(name, end)):
            if row.time_before < micros and self.indexed_entry(name, row, end):
                return self.entries(name, row.offset, end)
        return self.entries(name, self.first_entry(name), end)

    def read(
        self, after: Position, upto: Position | None = None, *, continues: bool = False
    ) -> Iterator[Entry]:
        """The entries that overlap `(after, upto]`, with a SCHEMA entry first.

        A reader that `continues` at the end of its last range knows the schemas and gets none.
        `ORIGIN` means the beginning of the log, wherever retention has moved it.
        """
        end = self.end()
        place, names = self._seeker.find(after, end)
        header = self.header(place.name)
        if not continues:
            yield place.schemas.entry(
                after, end_lsn=header.base_end_lsn, time=header.base_time, epoch=header.epoch
            )
        schemas = place.schemas.copy()
        reached = max(after, header.base)
        for name in names:
            base = self.header(name).base
            if upto is not None and base >= upto:
                break
            _check_reached(reached, base, name.file)
            offset = self._first_offset(name, place)
            for placed in self.entries(name, offset, end):
                entry = placed.entry
                if upto is not None and entry.first > upto:
                    self._seeker.remember(reached, SeekResult(name, placed.start, schemas))
                    return
                if entry.changes or entry.schemas:
                    yield entry
                schemas.note_entry(entry)
                reached = max(reached, entry.last)
                offset = placed.end
            self._seeker.remember(reached, SeekResult(name, offset, schemas.copy()))
        else:
            _check_reached(reached, end.position, "the durable mark")

    def extent(
        self, after: Position, *, rows: int, size: int, upto: Position | None = None
    ) -> Extent:
        """How far about `rows` changes or `size` bytes after a position reach.

        Ends with the first entry that reaches one of the limits and ends a transaction.
        """
        extent = Extent(after, 0, 0)
        for extent, place in self._extents(after, upto):
            # The next extent begins after this one.
            self._seeker.remember(extent.upto, place)
            if extent.rows >= rows or extent.bytes >= size:
                break
        return extent

    def _extents(
        self, after: Position, upto: Position | None
    ) -> Iterator[tuple[Extent, SeekResult]]:
        """Longer and longer extents, and where each ends. Reads only headers and schemas."""
        end = self.end()
        limit = end.position if upto is None else min(upto, end.position)
        place, names = self._seeker.find(after, end)
        schemas, rows, size, last, whole = place.schemas, 0, 0, after, True
        for name in names:
            if whole and self.header(name).base >= limit:
                return
            for placed in self.entries(name, self._first_offset(name, place), end, bodies=False):
                entry = placed.entry
                # The last fragment of a transaction may hold the commit and no change. Its `first`
                # is then one after the last change, and yet it belongs to the transaction.
                if whole and entry.first > limit:
                    return
                whole = entry.ends
                rows += entry.changes
                size += placed.end - placed.start
                last = max(last, entry.last)
                if _has_new_schemas(entry):
                    schemas = schemas.copy()
                    schemas.note_entry(self.entry_at(name, placed.start, end))
                if whole:
                    yield Extent(last, rows, size), SeekResult(name, placed.end, schemas)

    def relations(
        self, after: Position, upto: Position | None = None, *, in_force: bool = True
    ) -> Iterator[tuple[Position, Relation, dict[int, TypeName]]]:
        """The relations in force at a position and those stated up to another, in order.

        Each comes with the types it uses and with the end of the last whole transaction before
        the entry that states it. Entries without schemas are not read.
        """
        end = self.end()
        place, names = self._seeker.find(after, end)
        types: dict[int, TypeName] = {}
        stated = list(read_relations(place.schemas.messages(), types))
        yield from ((after, *item) for item in stated if in_force)
        whole = after
        for name in names:
            for placed in self.entries(name, self._first_offset(name, place), end, bodies=False):
                entry = placed.entry
                if upto is not None and entry.first > upto:
                    return
                if _has_new_schemas(entry):
                    messages = self.entry_at(name, placed.start, end).schema_messages()
                    yield from ((whole, *item) for item in read_relations(messages, types))
                if entry.ends:
                    whole = max(whole, entry.last)

    def _first_offset(self, name: SegmentName, place: SeekResult) -> int:
        """Where to start in a segment: at the place that was sought, or at its first entry."""
        return place.offset if name == place.name else self.first_entry(name)


def _has_new_schemas(entry: Entry) -> bool:
    """SCHEMA entries only repeat what is known."""
    return bool(entry.schemas) and entry.kind is not Kind.SCHEMA


def _check_reached(reached: Position, base: Position, what: str) -> None:
    """Notice a segment that was cut exactly between two entries: its checksums still match."""
    if reached < base:
        raise CorruptError(
            f"entries are missing between {reached} and {what}, which follows {base}"
        )


def _first_commit(entry: Entry, micros: int) -> Lsn | None:
    """The commit LSN of the first transaction in `entry` that is not older than `micros`."""
    if entry.last_time < micros:
        return None
    if entry.kind is Kind.FRAGMENT:
        return entry.first.lsn
    for message in entry.messages():
        if message[0] == _BEGIN and int.from_bytes(message[9:17], "big", signed=True) >= micros:
            return Lsn(int.from_bytes(message[1:9], "big"))
    return None


def _just_before(lsn: int) -> Position:
    """The last position before any change of a transaction."""
    return Position(Lsn(max(lsn - 1, 0)), (1 << 64) - 1)
