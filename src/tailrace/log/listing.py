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
    from tailrace.log.format.layout import SegmentHeader
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


@dataclass(frozen=True, slots=True)
class _Walked:
    """What the headers of a segment say, up to an offset."""

    header: SegmentHeader
    stop: int
    upto: Position
    epoch: int
    entries: int = 0
    changes: int = 0
    latest: int | None = None

    def row(self, name: SegmentName, size: int) -> SegmentRow:
        return SegmentRow(
            name=name,
            after=self.header.base,
            upto=self.upto,
            last_commit="" if self.latest is None else _time(self.latest),
            entries=self.entries,
            changes=self.changes,
            bytes=size,
            epoch=self.epoch,
        )


class Lister:
    """Lists a log again and again: each time it walks what was appended since."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._walked: dict[SegmentName, _Walked] = {}

    def read(self) -> Listing:
        """Walk the headers of all visible segments that are not known yet."""
        log = Log(self._store)
        end = log.end()
        self._walked = {name: self._walk(log, name, end) for name in log.visible_segments(end)}
        rows = [
            walked.row(name, self._store.size(name.file)) for name, walked in self._walked.items()
        ]
        return Listing(rows=rows, end=end, pins=retention.pins(self._store))

    def _walk(self, log: Log, name: SegmentName, end: Mark) -> _Walked:
        header, known = log.header(name), self._walked.get(name)
        limit = end.offset if name.sequence == end.sequence else self._store.size(name.file)
        # A takeover may cut a segment, or replace it.
        if known is None or known.header != header or known.stop > limit:
            known = _Walked(header, log.first_entry(name), upto=header.base, epoch=header.epoch)
        stop, upto, epoch = known.stop, known.upto, known.epoch
        entries, changes, latest = known.entries, known.changes, known.latest
        try:
            for placed in walk(self._store, name, stop, limit, bodies=False):
                entry, stop = placed.entry, placed.end
                upto, epoch = max(upto, entry.last), max(epoch, entry.epoch)
                entries += 1
                changes += entry.changes
                if entry.kind in (Kind.TRANSACTIONS, Kind.FRAGMENT):
                    latest = max(entry.last_time, latest or entry.last_time)
        except MalformedError as error:
            raise CorruptError(f"{name.file}: {error}", hint=error.hint) from error
        return _Walked(header, stop, upto, epoch, entries, changes, latest)


def listing(store: Store) -> Listing:
    """The log, listed once."""
    return Lister(store).read()


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
