"""Reading a log: from any process, while another appends.

A reader sees whole, durable transactions and nothing else: it stops at the durable mark. Ranges
are half-open on the left, `(after, upto]`, so the position of the last change taken is where to go
on. `read` begins with a SCHEMA entry that states the relations and types in force at that point,
so the entries it yields decode alone.

>>> log = Log.open(Path("tailrace-data/log"))                            # doctest: +SKIP
>>> for entry in log.read(log.resolve(Earliest())):                     # doctest: +SKIP
...     print(entry.first, entry.last, entry.changes)
"""

from __future__ import annotations

import bisect
import time as clock
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from tailrace.errors import ConfigError, CorruptError, MalformedError, PositionLostError
from tailrace.log.format import index
from tailrace.log.format import mark as marks
from tailrace.log.format.entry import NO_OFFSETS, Entry, Kind, pack
from tailrace.log.format.mark import Mark
from tailrace.log.format.segment import Placed, SegmentName, list_segments, read_header, walk
from tailrace.log.recovery import SchemaBook
from tailrace.log.store import LocalStore, Store
from tailrace.position import ORIGIN, Lsn, Position
from tailrace.schema import Relation, TypeName
from tailrace.wire import pgoutput
from tailrace.wire.pgtime import PgTime

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from tailrace.log.format.layout import SegmentHeader

_POLL_S = 0.005
_ONE_ENTRY_BYTES = 1 << 14
_BEGIN = ord("B")
_PLACES = 4
_START_CAPTURE = "Start `tailrace capture` once: it recovers the log and writes the mark."


@dataclass(frozen=True, slots=True)
class Earliest:
    """From the first change the log still holds."""


@dataclass(frozen=True, slots=True)
class Latest:
    """From now on."""


@dataclass(frozen=True, slots=True)
class AtLsn:
    """From the first transaction whose commit LSN is at or after `lsn`."""

    lsn: Lsn


@dataclass(frozen=True, slots=True)
class AtTime:
    """From the first transaction committed at or after `micros` since 2000-01-01 UTC."""

    micros: int


Start = Earliest | Latest | AtLsn | AtTime


@dataclass(frozen=True, slots=True)
class Extent:
    """A stretch of the log that ends with a whole transaction."""

    upto: Position
    rows: int
    bytes: int
    """Stored bytes, headers included."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the entries after a position begin, and the schemas in force there."""

    name: SegmentName
    offset: int
    schemas: SchemaBook


class Log:
    """Read access to a log."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._headers: dict[SegmentName, tuple[SegmentHeader, int]] = {}
        # Readers come back for what follows the last range: no need to seek again.
        self._places: dict[Position, _Place] = {}

    @classmethod
    def open(cls, folder: Path) -> Self:
        """The log in a local folder; ConfigError when there is none."""
        log = cls(LocalStore(folder))
        if not list_segments(log._store):
            raise ConfigError(
                f"there is no log in {folder}",
                hint="`tailrace capture` makes one; --log or log.path says where.",
            )
        return log

    def segments(self) -> list[SegmentName]:
        """The segments, oldest first; the last ones may hold nothing visible yet."""
        found = list_segments(self._store)
        if not found:
            raise ConfigError(f"there is no log in {self._store}")
        return found

    def visible_segments(self, end: Mark | None = None) -> list[SegmentName]:
        """The segments up to the durable mark; recovery may still take back those behind it."""
        end = end or self.end()
        names = [name for name in self.segments() if name.sequence <= end.sequence]
        if not names or names[-1].sequence != end.sequence:
            raise CorruptError(
                f"the durable mark stands in segment {end.sequence}, which is not there",
                hint=_START_CAPTURE,
            )
        if end.offset < self.first_entry(names[-1]):
            raise CorruptError("the durable mark stands before the first entry of its segment")
        return names

    def opens_whole(self, name: SegmentName) -> bool:
        """Whether a segment begins between two transactions."""
        return self._entry_at(name, self.first_entry(name), self.end()).ends

    def header(self, name: SegmentName) -> SegmentHeader:
        """A segment's header."""
        return self._header(name)[0]

    def first_entry(self, name: SegmentName) -> int:
        """The offset behind a segment's header."""
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

    def end(self) -> Mark:
        """The end of what is whole and durable."""
        # The mark comes into being right after the first segment: look at it again behind that.
        return marks.read(self._store) or self._untouched() or self._marked()

    def _marked(self) -> Mark:
        mark = marks.read(self._store)
        if mark is None:
            raise CorruptError("the log has no durable mark", hint=_START_CAPTURE)
        return mark

    def _untouched(self) -> Mark | None:
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

    def earliest(self) -> Position:
        """The position before the first change the log still holds."""
        return self.header(self.segments()[0]).base

    def wait(self, after: Position, timeout_s: float) -> Mark:
        """The end of the log, as soon as it is behind `after` or the time is over."""
        deadline = clock.monotonic() + timeout_s
        while True:
            mark = self.end()
            if mark.position > after or clock.monotonic() >= deadline:
                return mark
            clock.sleep(_POLL_S)

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
                    raise PositionLostError(f"{lsn} is older than the log: it holds {earliest} on")
                return _just_before(lsn)
            case AtTime(micros):
                return self._before_time(micros)

    def _before_time(self, micros: int) -> Position:
        end = self.end()
        names = self.visible_segments(end)
        oldest = self.header(names[0])
        if oldest.base_time >= micros and oldest.sequence > 1:
            raise PositionLostError(
                f"the log begins after {PgTime(oldest.base_time).to_datetime()}; "
                f"what was committed from {PgTime(micros).to_datetime()} on is partly gone"
            )
        later = [self.header(name).base_time for name in names[1:]]
        for name in names[bisect.bisect_left(later, micros) :]:
            for placed in self._walk_from_time(name, micros, end):
                lsn = _first_commit(placed.entry, micros)
                if lsn is not None:
                    return _just_before(lsn)
        return end.position

    def _walk_from_time(self, name: SegmentName, micros: int, end: Mark) -> Iterator[Placed]:
        """The entries of a segment from one before which everything is older than `micros`."""
        for row in reversed(self._rows(name, end)):
            if row.time_before < micros and self._indexed(name, row, end):
                return self._walk(name, row.offset, end)
        return self._walk(name, self.first_entry(name), end)

    def read(self, after: Position, upto: Position | None = None) -> Iterator[Entry]:
        """The entries that overlap `(after, upto]`, a SCHEMA entry first.

        `ORIGIN` stands for the beginning of the log, wherever retention has moved it.
        """
        end = self.end()
        place, names = self._find(after, end)
        yield _schema_entry(place.schemas, after, self.header(place.name))
        schemas = place.schemas.copy()
        reached = max(after, self.header(place.name).base)
        for name in names:
            base = self.header(name).base
            if upto is not None and base >= upto:
                break
            _check_reached(reached, base, name.file)
            offset = place.offset if name == place.name else self.first_entry(name)
            for placed in self._walk(name, offset, end):
                entry = placed.entry
                if upto is not None and entry.first > upto:
                    self._remember(reached, _Place(name, placed.start, schemas))
                    return
                if entry.changes or entry.schemas:
                    yield entry
                for message in entry.schema_messages():
                    schemas.note(message)
                reached = max(reached, entry.last)
                offset = placed.end
            self._remember(reached, _Place(name, offset, schemas.copy()))
        else:
            _check_reached(reached, end.position, "the durable mark")

    def extent(
        self, after: Position, *, rows: int, size: int, upto: Position | None = None
    ) -> Extent:
        """How far about `rows` changes or `size` bytes after a position reach.

        Ends with the first entry that fills one of the limits, and with a whole transaction.
        """
        whole = Extent(after, 0, 0)
        for whole, place in self._extents(after, upto):
            # The next extent begins behind this one.
            self._remember(whole.upto, place)
            if whole.rows >= rows or whole.bytes >= size:
                break
        return whole

    def _extents(self, after: Position, upto: Position | None) -> Iterator[tuple[Extent, _Place]]:
        """Ever longer extents, and where each ends; only headers and schemas are read."""
        end = self.end()
        limit = end.position if upto is None else min(upto, end.position)
        place, names = self._find(after, end)
        schemas, rows, size, last, whole = place.schemas, 0, 0, after, True
        for name in names:
            if whole and self.header(name).base >= limit:
                return
            offset = place.offset if name == place.name else self.first_entry(name)
            for placed in self._walk(name, offset, end, bodies=False):
                entry = placed.entry
                # The last piece of a large transaction may hold its commit and no change: it
                # counts from the ordinal behind the last change, and still belongs to it.
                if whole and entry.first > limit:
                    return
                whole = entry.ends
                rows += entry.changes
                size += placed.end - placed.start
                last = max(last, entry.last)
                if entry.schemas and entry.kind is not Kind.SCHEMA:
                    schemas = schemas.copy()
                    for message in self._entry_at(name, placed.start, end).schema_messages():
                        schemas.note(message)
                if whole:
                    yield Extent(last, rows, size), _Place(name, placed.end, schemas)

    def relations(
        self, after: Position, upto: Position | None = None, *, in_force: bool = True
    ) -> Iterator[tuple[Position, Relation, dict[int, TypeName]]]:
        """The tables in force at a position and those stated up to another, in order.

        Each comes with the types it uses and with the end of the last whole transaction before
        the entry that states it. Entries without schemas are not read.
        """
        end = self.end()
        place, names = self._find(after, end)
        types: dict[int, TypeName] = {}
        stated = _relations(after, place.schemas.messages(), types)
        yield from [found for found in stated if in_force]
        whole = after
        for name in names:
            offset = place.offset if name == place.name else self.first_entry(name)
            for placed in self._walk(name, offset, end, bodies=False):
                entry = placed.entry
                if upto is not None and entry.first > upto:
                    return
                if entry.schemas and entry.kind is not Kind.SCHEMA:
                    messages = self._entry_at(name, placed.start, end).schema_messages()
                    yield from _relations(whole, messages, types)
                if entry.ends:
                    whole = max(whole, entry.last)

    def _find(self, after: Position, end: Mark) -> tuple[_Place, list[SegmentName]]:
        """The place after a position, and the segments from there on."""
        names = self.visible_segments(end)
        bases = [self.header(name).base for name in names]
        if after < bases[0] and after != ORIGIN:
            raise PositionLostError(f"{after} is older than the log, which begins after {bases[0]}")
        known = self._places.get(after)
        if known is not None and known.name in names:
            return known, names[names.index(known.name) :]
        first = max(bisect.bisect_right(bases, after) - 1, 0)
        place = self._seek(names[first], after, end)
        self._remember(after, place)
        return place, names[first:]

    def _remember(self, after: Position, place: _Place) -> None:
        self._places.pop(after, None)
        self._places[after] = place
        while len(self._places) > _PLACES:
            del self._places[next(iter(self._places))]

    def _seek(self, name: SegmentName, after: Position, end: Mark) -> _Place:
        """Where the entries after a position begin in a segment, and the schemas in force there."""
        rows = [row for row in self._rows(name, end) if row.first <= after]
        start, schemas = self._jump(name, rows, end) or (self.first_entry(name), SchemaBook())
        for placed in self._walk(name, start, end):
            if placed.entry.last > after:
                break
            for message in placed.entry.schema_messages():
                schemas.note(message)
            start = placed.end
        return _Place(name, start, schemas)

    def _jump(
        self, name: SegmentName, rows: list[index.Row], end: Mark
    ) -> tuple[int, SchemaBook] | None:
        """The last indexed entry and the schemas before it; None when the index is no use."""
        schemas = SchemaBook()
        if not rows:
            return None
        for message in self._entry_at(name, self.first_entry(name), end).schema_messages():
            schemas.note(message)
        for row in rows:
            if not row.schemas and row is not rows[-1]:
                continue
            entry = self._indexed(name, row, end)
            if entry is None:
                return None
            if row is not rows[-1]:
                for message in entry.schema_messages():
                    schemas.note(message)
        return rows[-1].offset, schemas

    def _rows(self, name: SegmentName, end: Mark) -> list[index.Row]:
        """The index of what is visible in a segment, by offset."""
        rows = index.read(self._store, name.index)
        limit = self._limit(name, end)
        return sorted((row for row in rows if row.offset < limit), key=lambda row: row.offset)

    def _indexed(self, name: SegmentName, row: index.Row, end: Mark) -> Entry | None:
        """The entry a row promises, if it is there: an index is a hint, never the truth."""
        try:
            found = self._entry_at(name, row.offset, end)
        except CorruptError:
            return None
        fits = (found.first, bool(found.schemas)) == (row.first, row.schemas)
        return found if fits else None

    def _entry_at(self, name: SegmentName, offset: int, end: Mark) -> Entry:
        for placed in self._walk(name, offset, end, window_bytes=_ONE_ENTRY_BYTES):
            return placed.entry
        raise CorruptError(f"{name.file} has no entry at byte {offset}")

    def _limit(self, name: SegmentName, end: Mark) -> int:
        if name.sequence == end.sequence:
            return end.offset
        try:
            return self._store.size(name.file)
        except FileNotFoundError as error:
            raise PositionLostError(f"retention removed {name.file} while it was read") from error

    def _walk(
        self,
        name: SegmentName,
        start: int,
        end: Mark,
        *,
        bodies: bool = True,
        window_bytes: int | None = None,
    ) -> Iterator[Placed]:
        """The visible entries of a segment from an offset."""
        limit = self._limit(name, end)
        try:
            yield from walk(
                self._store, name, start, limit, bodies=bodies, window_bytes=window_bytes
            )
        except MalformedError as error:
            raise CorruptError(f"{name.file}: {error}", hint=error.hint) from error
        except FileNotFoundError as error:
            raise PositionLostError(f"retention removed {name.file} while it was read") from error


def _relations(
    at: Position, messages: Iterable[bytes | memoryview], types: dict[int, TypeName]
) -> Iterator[tuple[Position, Relation, dict[int, TypeName]]]:
    for raw in messages:
        value = pgoutput.parse(raw)
        if isinstance(value, TypeName):
            types[value.oid] = value
        elif isinstance(value, Relation):
            used = {column.type_oid for column in value.columns}
            yield at, value, {oid: types[oid] for oid in used if oid in types}


def _check_reached(reached: Position, base: Position, what: str) -> None:
    """A segment cut exactly between two entries is whole to its checksums, and yet cut."""
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
    return Position(Lsn(max(lsn - 1, 0)), (1 << 64) - 1)


def _schema_entry(schemas: SchemaBook, at: Position, header: SegmentHeader) -> Entry:
    messages = schemas.messages()
    offsets, body = pack(messages) if messages else (NO_OFFSETS, b"")
    return Entry(
        kind=Kind.SCHEMA, first=at, last=at, end_lsn=header.base_end_lsn,
        first_time=header.base_time, last_time=header.base_time, schemas=len(messages),
        epoch=header.epoch, offsets=offsets, body=body,
    )  # fmt: skip
