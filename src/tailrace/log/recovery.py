"""Recovery: find where the log really ends, and cut off what never became whole.

Run under the lease, at every start and whenever the stream begins again in the middle of a
transaction. Three things may stand behind the last whole transaction, and all of them go: a torn
entry, an entry that was written but whose transaction never ended, a segment with nothing else in
it. PostgreSQL sends such a transaction again from its first row.

Damage anywhere else is corruption, and then nothing on disk is touched. The durable mark and a
valid entry behind the damage both prove that the damaged bytes were once durable.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tailrace.errors import CorruptError, MalformedError
from tailrace.log import index
from tailrace.log import mark as marks
from tailrace.log.mark import Mark
from tailrace.log.segment import (
    SegmentName,
    another_entry_after,
    list_segments,
    read_header,
    walk,
)

if TYPE_CHECKING:
    from tailrace.log.format import Identity, SegmentHeader
    from tailrace.log.store import Store


@dataclass(slots=True)
class SchemaBook:
    """The Relation and Type messages in force, raw, by kind and oid."""

    _messages: dict[bytes, bytes] = field(default_factory=dict)

    def note(self, message: bytes | memoryview) -> None:
        """A newer message replaces the older one of the same object."""
        raw = bytes(message)
        self._messages[raw[:5]] = raw

    def messages(self) -> list[bytes]:
        """All of them, types first: relations refer to types."""
        return sorted(self._messages.values(), key=lambda raw: raw[:1] != b"Y")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """The state of a log at its last whole transaction."""

    segment: SegmentName
    identity: Identity
    mark: Mark
    schemas: SchemaBook
    builder: index.IndexBuilder


def recover(store: Store) -> Recovered | None:
    """Bring the log to its last whole transaction; None when there is no log here."""
    segments = list_segments(store)
    mark = _readable_mark(store)
    while segments:
        scan = _scan(store, segments[-1], mark)
        if scan is not None:
            return _settle(store, scan, mark)
        unfinished = segments.pop()
        if not segments:
            raise CorruptError(f"{unfinished.file} is the only segment and holds nothing whole")
        store.remove(unfinished.file)
        store.remove(unfinished.index)
    if mark is not None:
        raise CorruptError("there is a durable mark but no segment")
    return None


def _readable_mark(store: Store) -> Mark | None:
    try:
        return marks.read(store)
    except CorruptError:
        return None


@dataclass(slots=True)
class _Scan:
    name: SegmentName
    header: SegmentHeader
    end: Mark
    schemas: SchemaBook
    rows: list[index.Row]
    builder: index.IndexBuilder


def _scan(store: Store, name: SegmentName, mark: Mark | None) -> _Scan | None:
    """Read a segment up to its last whole transaction; None when it holds none."""
    settled = (mark.sequence, mark.offset) if mark else (0, 0)
    at = 0
    found: _Scan | None = None
    try:
        header, at = read_header(store, name)
        schemas = SchemaBook()
        builder = index.IndexBuilder(time_before=header.base_time)
        rows: list[index.Row] = []
        time = header.base_time
        unsettled: list[tuple[int, index.Row | None, list[bytes]]] = []
        for placed in walk(store, name, at):
            entry = placed.entry
            time = max(time, entry.last_time)
            row = builder.add(placed.start, entry)
            unsettled.append((placed.start, row, [bytes(m) for m in entry.schema_messages()]))
            at = placed.end
            if not entry.ends:
                continue
            for _, seen, messages in unsettled:
                rows.extend([seen] if seen else [])
                for message in messages:
                    schemas.note(message)
            unsettled.clear()
            end = Mark(
                sequence=name.sequence, offset=placed.end, position=entry.last,
                end_lsn=entry.end_lsn, time=time, epoch=entry.epoch,
            )  # fmt: skip
            found = _Scan(name, header, end, schemas, rows, builder)
    except MalformedError as error:
        if (name.sequence, at) < settled or another_entry_after(store, name, at):
            raise CorruptError(f"{name.file} at byte {at}: {error}") from error
    return found


def _settle(store: Store, scan: _Scan, mark: Mark | None) -> Recovered:
    """Cut the segment to its end and make index and mark agree with it."""
    if mark and (scan.end.sequence, scan.end.offset) < (mark.sequence, mark.offset):
        raise CorruptError(
            f"the log ends at {scan.end.end_lsn} in {scan.name.file}, "
            f"before its durable mark at {mark.end_lsn}"
        )
    if store.size(scan.name.file) > scan.end.offset:
        store.truncate(scan.name.file, scan.end.offset)
    else:
        file = store.append_to(scan.name.file)
        file.sync()
        file.close()
    store.write_atomic(scan.name.index, b"".join(row.encode() for row in scan.rows))
    if scan.end != mark:
        marks.write(store, scan.end, durably=True)
    builder = index.IndexBuilder(time_before=scan.end.time)
    return Recovered(
        segment=scan.name,
        identity=scan.header.identity,
        mark=scan.end,
        schemas=scan.schemas,
        builder=builder,
    )
