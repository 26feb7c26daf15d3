"""The history of relations in the log: each Relation message with its first position.

For schema documents and Creek's schemas, which need every version of a table's columns and the
first change that has them. Not for decoding: capture and pipelines track relations by themselves.

Entry headers tell which entries hold Relation messages, so the bodies of all others are not read. A
reader can store its cursor and resume there, even after retention has removed older segments.
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
_RELATION, _TYPE = ord("R"), ord("Y")


@dataclass(frozen=True, slots=True)
class RelationVersion:
    """A relation, and the position from which changes of its table have its columns.

    That is the position of the next change in the log, of whichever table.
    """

    position: Position
    relation: Relation


@dataclass(frozen=True, slots=True)
class LogCursor:
    """How far the log was read: a segment file and an offset in it.

    `log_id` is the id of the log. A log that was created again, after a restore, may have a file of
    the same name. Cursors of earlier releases have none: the log is read from its start once more.
    """

    segment: str
    offset: int
    log_id: str = ""


class RelationHistory:
    """Reads the relations and types that were added to the log since the last call."""

    def __init__(self, store: LocalStore, cursor: LogCursor | None = None) -> None:
        self._store = store
        self.cursor = cursor
        """None: read from the start of the log."""
        self.types: dict[int, TypeName] = {}
        self._latest: dict[int, Relation] = {}

    @property
    def type_names(self) -> dict[int, str]:
        """The names of the types, by oid."""
        return {oid: type_name.name for oid, type_name in self.types.items()}

    def read(self) -> list[RelationVersion]:
        """The new versions. A relation that repeats the last one of its table is not new."""
        log = Log(self._store)
        end = log.end()
        versions, latest = [], dict(self._latest)
        for item in self._items(log, end):
            if isinstance(item, RelationVersion):
                relation = item.relation
                if latest.get(relation.oid) != relation:
                    versions.append(item)
                latest[relation.oid] = relation
            else:
                self.types[item.oid] = item
        # Assigned last: if retention removes a segment during the loop, the next call repeats it.
        self._latest = latest
        return versions

    def _items(self, log: Log, end: Mark) -> Iterator[RelationVersion | TypeName]:
        names = log.visible_segments(end)
        files = [name.file for name in names]
        log_id = log.header(names[-1]).log_id
        cursor = self.cursor
        if cursor is not None and (cursor.log_id != log_id or cursor.segment not in files):
            cursor = None
        for name in names[files.index(cursor.segment) if cursor else 0 :]:
            resumed = cursor is not None and name.file == cursor.segment
            begin = cursor.offset if cursor and resumed else log.first_entry(name)
            limit = end.offset if name.sequence == end.sequence else None
            # A segment begins with the relations in force. They are new only in the first segment.
            opening = cursor is None and name == names[0]
            yield from self._segment(name, begin, limit, opening=opening)
        self.cursor = LogCursor(files[-1], end.offset, log_id)

    def _segment(
        self, name: SegmentName, begin: int, limit: int | None, *, opening: bool
    ) -> Iterator[RelationVersion | TypeName]:
        for placed in walk(self._store, name, begin, limit, bodies=False):
            if placed.entry.schemas and (opening or placed.entry.kind is not Kind.SCHEMA):
                [whole] = walk(self._store, name, placed.start, placed.end)
                yield from relations_in(whole.entry)


def relations_in(entry: Entry) -> Iterator[RelationVersion | TypeName]:
    """The relations and types of an entry, in order.

    The position of a relation is the LSN of its transaction and the number of changes before it:

        B I I R I C    two changes before R: ordinal 2, the position of the third change

    Relations before a BEGIN are repetitions and are skipped: capture copies what the server sent
    with transactions that the log already had.
    """
    starts = entry.offsets[:-1]
    kinds = np.frombuffer(entry.body, np.uint8)[starts]
    begins = np.flatnonzero(kinds == _BEGIN)
    counts = np.isin(kinds, _ONE_CHANGE).astype(np.int64)
    # A TRUNCATE is one change per table.
    for index in np.flatnonzero(kinds == _TRUNCATE):
        counts[index] = _number(entry, int(index), 4)
    changes_before = np.concatenate([[0], np.cumsum(counts)])
    for index in np.flatnonzero((kinds == _RELATION) | (kinds == _TYPE)):
        message = pgoutput.parse(entry.body[starts[index] : entry.offsets[index + 1]])
        if isinstance(message, pgoutput.TypeName):
            yield message
            continue
        assert isinstance(message, pgoutput.Relation)
        last_begin = int(np.searchsorted(begins, index)) - 1
        if last_begin >= 0:
            begin = int(begins[last_begin])
            ordinal = int(changes_before[index] - changes_before[begin])
            yield RelationVersion(Position(Lsn(_number(entry, begin, 8)), ordinal), message)
        elif entry.kind is Kind.FRAGMENT and not entry.begins:
            ordinal = entry.first.ordinal + int(changes_before[index])
            yield RelationVersion(Position(entry.first.lsn, ordinal), message)
        elif entry.kind is Kind.SCHEMA:
            yield RelationVersion(entry.first, message)


def logical_messages(entry: Entry, prefix: str) -> Iterator[tuple[Lsn, bytes]]:
    """The contents of transactional logical messages with a prefix, with the commit's LSN."""
    if prefix.encode() not in entry.body:
        return
    kinds = np.frombuffer(entry.body, np.uint8)[entry.offsets[:-1]]
    begins = np.flatnonzero(kinds == _BEGIN)
    for index in np.flatnonzero(kinds == _MESSAGE):
        message = pgoutput.parse(entry.body[entry.offsets[index] : entry.offsets[index + 1]])
        assert isinstance(message, pgoutput.Message)
        if message.prefix != prefix or not message.transactional:
            continue
        last_begin = int(np.searchsorted(begins, index)) - 1
        lsn = (
            Lsn(_number(entry, int(begins[last_begin]), 8)) if last_begin >= 0 else entry.first.lsn
        )
        yield lsn, message.content


def _number(entry: Entry, index: int, size: int) -> int:
    """The number that follows the kind of a message."""
    start = int(entry.offsets[index]) + 1
    return int.from_bytes(entry.body[start : start + size], "big")
