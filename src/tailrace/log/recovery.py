"""Recovery: finds the end of the last whole transaction and removes what comes after it.

Runs under the lease, at every start and whenever the stream restarts inside a transaction. Three
things may follow the last whole transaction, and recovery removes all of them:

    a torn entry               written in part when the process or the machine stopped
    an unfinished transaction  fragments whose commit never arrived
    an unfinished segment      a segment with nothing but the above

PostgreSQL sends such a transaction again from its first row.

Damage anywhere else is corruption, and recovery then changes nothing on disk. The durable mark and
a valid entry after the damage both prove that the damaged bytes were once durable. The header and
the first entry of a segment are written in one atomic step, so they cannot be torn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.errors import CorruptError, MalformedError
from tailrace.log.format import index
from tailrace.log.format import mark as marks
from tailrace.log.format.mark import Mark
from tailrace.log.format.segment import (
    SegmentName,
    another_entry_after,
    list_segments,
    read_header,
    walk,
)
from tailrace.log.schema_book import SchemaBook

if TYPE_CHECKING:
    from tailrace.log.format.layout import Identity
    from tailrace.log.format.segment import Placed
    from tailrace.log.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """The state of a log at the end of its last whole transaction."""

    segment: SegmentName
    identity: Identity
    log_id: str
    mark: Mark
    schemas: SchemaBook
    builder: index.IndexBuilder


def recover(store: Store) -> Recovered | None:
    """Cut the log to its last whole transaction; None if there is no log."""
    segments = list_segments(store)
    mark = marks.peek(store)
    if not segments:
        if mark is not None:
            raise CorruptError("there is a durable mark but no segment")
        return None
    for count, name in enumerate(reversed(segments)):
        scan = _scan(store, name, mark)
        if scan.end is not None:
            _check_mark(name, scan.end, mark)
            _remove(store, segments[len(segments) - count :])
            return _cut(store, scan, scan.end, mark)
    raise CorruptError(f"{segments[0].file} is the first segment and holds no whole transaction")


def _check_mark(name: SegmentName, end: Mark, mark: Mark | None) -> None:
    if mark and (end.sequence, end.offset) < (mark.sequence, mark.offset):
        raise CorruptError(
            f"the log ends at {end.end_lsn} in {name.file}, "
            f"before its durable mark at {mark.end_lsn}"
        )


def _remove(store: Store, unfinished: list[SegmentName]) -> None:
    """Newest first, each after its index: an interruption leaves no hole and no stale index."""
    for name in reversed(unfinished):
        store.remove(name.index)
        store.remove(name.file)


class _Scan:
    """Reads one segment entry by entry; `end`, `schemas` and `rows` describe its whole part.

    Index rows and schemas of an open transaction wait in `_open` until its last fragment:

        entry      SCHEMA  TRANSACTIONS  FRAGMENT  FRAGMENT  (torn)
        ends       yes     yes           no        no
        end                here
        _open                            1 item    2 items
    """

    def __init__(self, name: SegmentName) -> None:
        self.name = name
        self.identity: Identity | None = None
        self.log_id = ""
        self.at = 0
        """The offset of the first byte that is not part of a valid entry."""
        self.end: Mark | None = None
        self.schemas = SchemaBook()
        self.rows: list[index.Row] = []
        self.entries = 0
        self._open: list[tuple[index.Row | None, list[bytes]]] = []
        self._time = 0

    def read(self, store: Store) -> None:
        """Read to the end of the file. Raises MalformedError at the first damage."""
        header, self.at = read_header(store, self.name)
        self.identity, self.log_id = header.identity, header.log_id
        self._time = header.base_time
        builder = index.IndexBuilder(time_before=header.base_time)
        for placed in walk(store, self.name, self.at):
            # The first entry gets no row: readers find it without an index.
            row = builder.add(placed.start, placed.entry) if self.entries else None
            self._add(placed, row)

    def _add(self, placed: Placed, row: index.Row | None) -> None:
        entry, self.at = placed.entry, placed.end
        self.entries += 1
        self._time = max(self._time, entry.last_time)
        self._open.append((row, [bytes(message) for message in entry.schema_messages()]))
        if not entry.ends:
            return
        for row_, messages in self._open:
            self.rows.extend([row_] if row_ else [])
            for message in messages:
                self.schemas.note(message)
        self._open.clear()
        self.end = Mark(
            sequence=self.name.sequence, offset=placed.end, position=entry.last,
            end_lsn=entry.end_lsn, time=self._time, epoch=entry.epoch,
        )  # fmt: skip


def _scan(store: Store, name: SegmentName, mark: Mark | None) -> _Scan:
    """Read a segment up to its end or its torn tail. Raises CorruptError for other damage.

    What a damaged entry means:

        the header or the first entry       corrupt: they are written atomically
        before the durable mark             corrupt: the mark is written after the fsync
        a valid entry follows               corrupt: the appender fsyncs an entry before the next
        otherwise                           a torn tail, which recovery cuts off
    """
    scan = _Scan(name)
    try:
        scan.read(store)
    except MalformedError as error:
        durable = mark is not None and (name.sequence, scan.at) < (mark.sequence, mark.offset)
        if not scan.entries or durable or another_entry_after(store, name, scan.at):
            raise CorruptError(
                f"{name.file} at byte {scan.at}: {error}", hint=error.hint
            ) from error
    if not scan.entries:
        raise CorruptError(f"{name.file} has no first entry")
    return scan


def _cut(store: Store, scan: _Scan, end: Mark, mark: Mark | None) -> Recovered:
    """Cut the segment at its end and make index and mark agree with it."""
    assert scan.identity is not None
    if end != mark:
        # The last entries are valid, but they may exist in the page cache only: an fsync that
        # failed once succeeds the next time without writing. So the file is written anew.
        store.rewrite(scan.name.file, end.offset)
    elif store.size(scan.name.file) > end.offset:
        store.truncate(scan.name.file, end.offset)
    store.write_atomic(scan.name.index, b"".join(row.encode() for row in scan.rows))
    if end != mark:
        marks.write(store, end, durably=True)
    return Recovered(
        segment=scan.name,
        identity=scan.identity,
        log_id=scan.log_id,
        mark=end,
        schemas=scan.schemas,
        builder=index.IndexBuilder(time_before=end.time),
    )
