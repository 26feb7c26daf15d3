"""Relation messages of the log, each with the position of the first change that has its columns.

Headers tell which entries hold any, so the rest of the log is not read. Where reading has got to
can be kept, and goes on over segments that retention removes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tailrace.log.format.entry import Kind
from tailrace.log.format.segment import walk
from tailrace.log.reader import Log
from tailrace.position import Lsn, Position
from tailrace.wire import pgoutput

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.log.format.entry import Entry
    from tailrace.log.format.mark import Mark
    from tailrace.log.format.segment import SegmentName
    from tailrace.log.store import LocalStore
    from tailrace.schema import Relation, TypeName

_ONE_CHANGE = np.frombuffer(b"IUDM", np.uint8)
_TRUNCATE, _BEGIN, _MESSAGE = ord("T"), ord("B"), ord("M")


@dataclass(frozen=True, slots=True)
class Statement:
    """A relation, and the first change it describes."""

    position: Position
    relation: Relation


@dataclass(frozen=True, slots=True)
class Place:
    """How far a log was read: a segment's file and an offset in it."""

    segment: str
    offset: int


class Statements:
    """Reads what the log has gained since the last time, from its beginning at first."""

    def __init__(self, store: LocalStore, place: Place | None = None) -> None:
        self._store = store
        self.place = place
        self.types: dict[int, TypeName] = {}
        self._seen: dict[int, Relation] = {}

    @property
    def type_names(self) -> dict[int, str]:
        """The types' names alone."""
        return {oid: stated.name for oid, stated in self.types.items()}

    def read(self) -> list[Statement]:
        """The statements that say something new of their table; a repetition does not."""
        log = Log(self._store)
        end = log.end()
        found, seen = [], dict(self._seen)
        for stated in self._stated(log, end):
            if isinstance(stated, Statement):
                relation = stated.relation
                if seen.get(relation.oid) != relation:
                    found.append(stated)
                seen[relation.oid] = relation
            else:
                self.types[stated.oid] = stated
        # Only now: a segment that retention removes meanwhile ends this, and it is read again.
        self._seen = seen
        return found

    def _stated(self, log: Log, end: Mark) -> Iterator[Statement | TypeName]:
        names = log.visible_segments(end)
        files = [name.file for name in names]
        place = self.place if self.place and self.place.segment in files else None
        for name in names[files.index(place.segment) if place else 0 :]:
            resumed = place is not None and name.file == place.segment
            begin = place.offset if place and resumed else log.first_entry(name)
            limit = end.offset if name.sequence == end.sequence else None
            # A segment opens with what is in force: that is news only where reading begins.
            opening = place is None and name == names[0]
            yield from self._entries(name, begin, limit, opening=opening)
        self.place = Place(files[-1], end.offset)

    def _entries(
        self, name: SegmentName, begin: int, limit: int | None, *, opening: bool
    ) -> Iterator[Statement | TypeName]:
        for placed in walk(self._store, name, begin, limit, bodies=False):
            if placed.entry.schemas and (opening or placed.entry.kind is not Kind.SCHEMA):
                [whole] = walk(self._store, name, placed.start, placed.end)
                yield from statements(whole.entry)


def statements(entry: Entry) -> Iterator[Statement | TypeName]:
    """The relations and types that an entry states, in order.

    Relations before a transaction's BEGIN are repetitions: capture carries over what the server
    sent with transactions that the log had already.
    """
    starts = entry.offsets[:-1]
    body = np.frombuffer(entry.body, np.uint8)
    kinds = body[starts]
    begins = np.flatnonzero(kinds == _BEGIN)
    counts = np.isin(kinds, _ONE_CHANGE).astype(np.int64)
    for index in np.flatnonzero(kinds == _TRUNCATE):
        counts[index] = _number(entry, int(index), 4)
    before = np.concatenate([[0], np.cumsum(counts)])
    for index in np.flatnonzero((kinds == ord("R")) | (kinds == ord("Y"))):
        stated = pgoutput.parse(entry.body[starts[index] : entry.offsets[index + 1]])
        if isinstance(stated, pgoutput.TypeName):
            yield stated
            continue
        assert isinstance(stated, pgoutput.Relation)
        at = int(np.searchsorted(begins, index)) - 1
        if at >= 0:
            begin = int(begins[at])
            ordinal = int(before[index] - before[begin])
            yield Statement(Position(Lsn(_number(entry, begin, 8)), ordinal), stated)
        elif entry.kind is Kind.FRAGMENT and not entry.begins:
            ordinal = entry.first.ordinal + int(before[index])
            yield Statement(Position(entry.first.lsn, ordinal), stated)
        elif entry.kind is Kind.SCHEMA:
            yield Statement(entry.first, stated)


def logical_messages(entry: Entry, prefix: str) -> Iterator[tuple[Lsn, bytes]]:
    """What logical messages of a prefix say in transactions, with the LSN of the commit."""
    if prefix.encode() not in entry.body:
        return
    kinds = np.frombuffer(entry.body, np.uint8)[entry.offsets[:-1]]
    begins = np.flatnonzero(kinds == _BEGIN)
    for index in np.flatnonzero(kinds == _MESSAGE):
        message = pgoutput.parse(entry.body[entry.offsets[index] : entry.offsets[index + 1]])
        assert isinstance(message, pgoutput.Message)
        if message.prefix != prefix or not message.transactional:
            continue
        at = int(np.searchsorted(begins, index)) - 1
        lsn = Lsn(_number(entry, int(begins[at]), 8)) if at >= 0 else entry.first.lsn
        yield lsn, message.content


def _number(entry: Entry, index: int, size: int) -> int:
    """The number behind a message's letter."""
    start = int(entry.offsets[index]) + 1
    return int.from_bytes(entry.body[start : start + size], "big")
