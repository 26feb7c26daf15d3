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
from tailrace.log import index
from tailrace.log import mark as marks
from tailrace.log.entry import NO_OFFSETS, Entry, Kind, pack
from tailrace.log.mark import Mark
from tailrace.log.recovery import SchemaBook
from tailrace.log.segment import SegmentName, list_segments, read_header, walk
from tailrace.log.store import LocalStore, Store
from tailrace.position import ORIGIN, Lsn, Position

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tailrace.log.format import SegmentHeader

_POLL_S = 0.005


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


class Log:
    """Read access to a log."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._headers: dict[SegmentName, tuple[SegmentHeader, int]] = {}

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
        """The segments, oldest first."""
        found = list_segments(self._store)
        if not found:
            raise ConfigError(f"there is no log in {self._store}")
        return found

    def header(self, name: SegmentName) -> SegmentHeader:
        """A segment's header."""
        return self._header(name)[0]

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
        mark = marks.read(self._store)
        if mark is None:
            mark = self._untouched()
        return mark

    def _untouched(self) -> Mark:
        """The end of a log that was created and never appended to: its mark comes last."""
        first, *others = self.segments()
        if others:
            raise CorruptError(
                "the log has no durable mark",
                hint="Start `tailrace capture` once: it recovers the log and writes the mark.",
            )
        header, size = self._header(first)
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
        names = self.segments()
        position = self.header(names[0]).base
        later = [self.header(name).base_time for name in names[1:]]
        for name in names[bisect.bisect_left(later, micros) :]:
            position = max(position, self.header(name).base)
            rows = index.read(self._store, name.index)
            at = max((row.offset for row in rows if row.time_before < micros), default=0)
            for placed in self._walk(name, at, end):
                if placed.last_time >= micros:
                    return self._split(placed, micros, position)
                position = placed.last
        return end.position

    @staticmethod
    def _split(entry: Entry, micros: int, before: Position) -> Position:
        """The last position inside `entry` that is older than `micros`."""
        if entry.kind is not Kind.TRANSACTIONS:
            return before
        for message in entry.messages():
            if message[0] != ord("B"):
                continue
            lsn = int.from_bytes(message[1:9], "big")
            if int.from_bytes(message[9:17], "big", signed=True) >= micros:
                return _just_before(lsn)
        return before

    def read(self, after: Position, upto: Position | None = None) -> Iterator[Entry]:
        """The entries that overlap `(after, upto]`, a SCHEMA entry first."""
        end = self.end()
        names = self.segments()
        bases = [self.header(name).base for name in names]
        if after < bases[0] and after != ORIGIN:
            raise PositionLostError(f"{after} is older than the log, which begins after {bases[0]}")
        first = max(bisect.bisect_right(bases, after) - 1, 0)
        for number, name in enumerate(names[first:]):
            if upto is not None and bases[first + number] >= upto:
                return
            start = 0
            if number == 0:
                start, schemas = self._seek(name, after, end)
                yield schemas
            for entry in self._walk(name, start, end):
                if upto is not None and entry.first > upto:
                    return
                if entry.last > after and (entry.changes or entry.schemas):
                    yield entry

    def _seek(self, name: SegmentName, after: Position, end: Mark) -> tuple[int, Entry]:
        """Where to begin in a segment, and the schemas in force there."""
        header, first_entry = self._header(name)
        rows = [row for row in index.read(self._store, name.index) if self._within(name, row, end)]
        start = max((row.offset for row in rows if row.first <= after), default=first_entry)
        schemas = SchemaBook()
        for at in {
            first_entry,
            *(row.offset for row in rows if row.schemas and row.offset < start),
        }:
            entry = next(self._walk(name, at, end))
            for message in entry.schema_messages():
                schemas.note(message)
        for entry in self._walk(name, start, end):
            if entry.last > after:
                break
            for message in entry.schema_messages():
                schemas.note(message)
        return start, _schema_entry(schemas, after, header)

    @staticmethod
    def _within(name: SegmentName, row: index.Row, end: Mark) -> bool:
        return (name.sequence, row.offset) < (end.sequence, end.offset)

    def _walk(self, name: SegmentName, start: int, end: Mark) -> Iterator[Entry]:
        """The visible entries of a segment from an offset; 0 means the first entry."""
        if name.sequence > end.sequence:
            return
        limit = end.offset if name.sequence == end.sequence else None
        try:
            for placed in walk(self._store, name, start or self._header(name)[1], limit):
                yield placed.entry
        except MalformedError as error:
            raise CorruptError(f"{name.file}: {error}") from error
        except FileNotFoundError as error:
            raise PositionLostError(f"retention removed {name.file} while it was read") from error


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
