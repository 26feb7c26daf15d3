"""Recovery: find where the log really ends, and cut off what never became whole.

Run under the lease, at every start and whenever the stream begins again in the middle of a
transaction. Three things may stand behind the last whole transaction, and all of them go: a torn
entry, an entry that was written but whose transaction never ended, a segment with nothing else in
it. PostgreSQL sends such a transaction again from its first row.

Damage anywhere else is corruption, and then nothing on disk is touched. The durable mark and a
valid entry behind the damage both prove that the damaged bytes were once durable; a segment's
header and first entry are written in one atomic step, so they cannot be torn.
"""

from __future__ import annotations

from dataclasses import dataclass, field
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

if TYPE_CHECKING:
    from tailrace.log.format.layout import Identity, SegmentHeader
    from tailrace.log.store import Store


@dataclass(slots=True)
class SchemaBook:
    """The Relation and Type messages in force, raw, by kind and oid."""

    _messages: dict[bytes, bytes] = field(default_factory=dict)

    def note(self, message: bytes | memoryview) -> None:
        """A newer message replaces the older one of the same object."""
        raw = bytes(message)
        self._messages[raw[:5]] = raw

    def copy(self) -> SchemaBook:
        """The same messages, to go on from."""
        return SchemaBook(dict(self._messages))

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
    mark = marks.peek(store)
    if not segments:
        if mark is not None:
            raise CorruptError("there is a durable mark but no segment")
        return None
    for count, name in enumerate(reversed(segments)):
        scan = _scan(store, name, mark)
        if scan is not None:
            _check_mark(scan, mark)
            unfinished = segments[len(segments) - count :]
            _remove(store, unfinished)
            return _settle(store, scan, mark)
    raise CorruptError(f"{segments[0].file} is the first segment and holds nothing whole")


def _check_mark(scan: _Scan, mark: Mark | None) -> None:
    if mark and (scan.end.sequence, scan.end.offset) < (mark.sequence, mark.offset):
        raise CorruptError(
            f"the log ends at {scan.end.end_lsn} in {scan.name.file}, "
            f"before its durable mark at {mark.end_lsn}"
        )


def _remove(store: Store, unfinished: list[SegmentName]) -> None:
    """Newest first, each after its index: an interruption leaves no hole and no stale index."""
    for name in reversed(unfinished):
        store.remove(name.index)
        store.remove(name.file)


@dataclass(slots=True)
class _Scan:
    name: SegmentName
    header: SegmentHeader
    end: Mark
    schemas: SchemaBook
    rows: list[index.Row]


def _scan(store: Store, name: SegmentName, mark: Mark | None) -> _Scan | None:
    """Read a segment up to its last whole transaction; None when it holds none."""
    settled = (mark.sequence, mark.offset) if mark else (0, 0)
    at, opened = 0, False
    found: _Scan | None = None
    try:
        header, at = read_header(store, name)
        schemas, rows = SchemaBook(), list[index.Row]()
        builder = index.IndexBuilder(time_before=header.base_time)
        time = header.base_time
        unsettled: list[tuple[index.Row | None, list[bytes]]] = []
        for placed in walk(store, name, at):
            entry, at = placed.entry, placed.end
            time = max(time, entry.last_time)
            # Nobody needs an index to find the first entry.
            row = builder.add(placed.start, entry) if opened else None
            opened = True
            unsettled.append((row, [bytes(message) for message in entry.schema_messages()]))
            if not entry.ends:
                continue
            for seen, messages in unsettled:
                rows.extend([seen] if seen else [])
                for message in messages:
                    schemas.note(message)
            unsettled.clear()
            end = Mark(
                sequence=name.sequence, offset=placed.end, position=entry.last,
                end_lsn=entry.end_lsn, time=time, epoch=entry.epoch,
            )  # fmt: skip
            found = _Scan(name, header, end, schemas, rows)
    except MalformedError as error:
        durable = not opened or (name.sequence, at) < settled
        if durable or another_entry_after(store, name, at):
            raise CorruptError(f"{name.file} at byte {at}: {error}", hint=error.hint) from error
    if not opened:
        raise CorruptError(f"{name.file} has no first entry")
    return found


def _settle(store: Store, scan: _Scan, mark: Mark | None) -> Recovered:
    """Cut the segment to its end and make index and mark agree with it."""
    if scan.end != mark:
        # Nobody knows whether the last entries were ever synced, yet they count from now on.
        store.rewrite(scan.name.file, scan.end.offset)
    elif store.size(scan.name.file) > scan.end.offset:
        store.truncate(scan.name.file, scan.end.offset)
    store.write_atomic(scan.name.index, b"".join(row.encode() for row in scan.rows))
    if scan.end != mark:
        marks.write(store, scan.end, durably=True)
    return Recovered(
        segment=scan.name,
        identity=scan.header.identity,
        mark=scan.end,
        schemas=scan.schemas,
        builder=index.IndexBuilder(time_before=scan.end.time),
    )
