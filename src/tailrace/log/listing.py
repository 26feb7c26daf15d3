"""The contents of each segment of a log, from headers only: `tailrace log ls` and the console."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tailrace.errors import CorruptError, MalformedError
from tailrace.log import retention
from tailrace.log.format.entry import Kind
from tailrace.log.format.segment import walk
from tailrace.log.reader import Log
from tailrace.wire.pgtime import PgTime

if TYPE_CHECKING:
    from tailrace.log.format.mark import Mark
    from tailrace.log.format.segment import SegmentName
    from tailrace.log.store import Store
    from tailrace.position import Position


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRow:
    """The visible part of one segment."""

    name: SegmentName
    after: Position
    upto: Position
    last_commit: str
    """ISO 8601 in UTC; empty if the segment holds no transaction."""
    entries: int
    changes: int
    bytes: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The whole log."""

    rows: list[SegmentRow]
    end: Mark
    pins: dict[str, Position]


def listing(store: Store) -> Listing:
    """Walk the headers of all visible segments."""
    log = Log(store)
    end = log.end()
    rows = [_row(store, log, name, end) for name in log.visible_segments(end)]
    return Listing(rows=rows, end=end, pins=retention.pins(store))


def _row(store: Store, log: Log, name: SegmentName, end: Mark) -> SegmentRow:
    header = log.header(name)
    limit = end.offset if name.sequence == end.sequence else None
    upto, epoch, entries, changes = header.base, header.epoch, 0, 0
    latest: int | None = None
    try:
        for placed in walk(store, name, log.first_entry(name), limit, bodies=False):
            entry = placed.entry
            upto, epoch = max(upto, entry.last), max(epoch, entry.epoch)
            entries += 1
            changes += entry.changes
            if entry.kind in (Kind.TRANSACTIONS, Kind.FRAGMENT):
                latest = max(entry.last_time, latest or entry.last_time)
    except MalformedError as error:
        raise CorruptError(f"{name.file}: {error}", hint=error.hint) from error
    return SegmentRow(
        name=name,
        after=header.base,
        upto=upto,
        last_commit="" if latest is None else _time(latest),
        entries=entries,
        changes=changes,
        bytes=store.size(name.file),
        epoch=epoch,
    )


def _time(micros: int) -> str:
    return PgTime(micros).to_datetime().isoformat(sep=" ", timespec="seconds")[:19]


def listing_json(listing: Listing) -> dict[str, Any]:
    """The listing as plain JSON values."""
    return {
        "segments": [
            {
                "file": row.name.file,
                "after": str(row.after),
                "upto": str(row.upto),
                "last_commit": f"{row.last_commit.replace(' ', 'T')}Z" if row.last_commit else None,
                "entries": row.entries,
                "changes": row.changes,
                "bytes": row.bytes,
                "epoch": row.epoch,
            }
            for row in listing.rows
        ],
        "end": {
            "position": str(listing.end.position),
            "end_lsn": str(listing.end.end_lsn),
            "epoch": listing.end.epoch,
        },
        "pins": {name: str(position) for name, position in sorted(listing.pins.items())},
    }
