"""The appender: the one writer of a log.

`append` returns when the entry is durable: write, fsync, then index and mark. When a segment is
full, the appender starts a new one, which opens with the identity of the source and the schemas in
force, so that it can be read without the earlier ones. A failed write or fsync closes the appender
for good: the process ends and the next start recovers the log.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Self

from tailrace.errors import LogError, LogFencedError, MalformedError
from tailrace.log.format import index
from tailrace.log.format import mark as marks
from tailrace.log.format.entry import Entry, Kind
from tailrace.log.format.layout import Codec, Identity, SegmentHeader, encode_entry
from tailrace.log.format.mark import Mark
from tailrace.log.format.segment import SegmentName, list_segments
from tailrace.log.recovery import Recovered, recover
from tailrace.log.schema_book import SchemaBook
from tailrace.observe import failpoint
from tailrace.position import Lsn, Position

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.log.lease import Lease
    from tailrace.log.store import AppendFile, Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How entries are stored: when a segment is full, and whether bodies are compressed."""

    segment_bytes: int = 64 << 20
    codec: int = Codec.NONE


def _utc_now() -> datetime:
    return datetime.now(UTC)


class Appender:
    """Append access to a log, from `open` or `create` to `close`."""

    def __init__(
        self,
        store: Store,
        lease: Lease,
        state: Recovered,
        layout: Layout,
        *,
        now: Callable[[], datetime] = _utc_now,
    ) -> None:
        self._store = store
        self._lease = lease
        self._layout = layout
        self._now = now
        self._file: AppendFile | None = None
        self._adopt(state)

    @classmethod
    def open(
        cls, store: Store, lease: Lease, layout: Layout, *, now: Callable[[], datetime] = _utc_now
    ) -> Self | None:
        """Recover and open an existing log; None if there is no log."""
        lease.check()
        state = recover(store)
        if state is None:
            return None
        if state.mark.epoch > lease.epoch:
            raise LogFencedError(
                f"the log was written in epoch {state.mark.epoch}, but this lease is epoch "
                f"{lease.epoch}"
            )
        return cls(store, lease, state, layout, now=now)

    @classmethod
    def create(
        cls,
        store: Store,
        lease: Lease,
        layout: Layout,
        *,
        identity: Identity,
        start_lsn: Lsn,
        log_id: str = "",
        time: int = 0,
        now: Callable[[], datetime] = _utc_now,
    ) -> Self:
        """Create a log that starts at the position of the slot.

        A commit may be exactly at `start_lsn`, so the log begins one byte earlier. `time` is the
        server's time: a non-transactional message has no commit time, and one that precedes the
        first commit gets this time.
        """
        lease.check()
        if list_segments(store):
            raise LogError(f"a log already exists in {store}")
        before = Position(Lsn(max(start_lsn - 1, 0)), 0)
        start = Mark(
            sequence=0, offset=0, position=before, end_lsn=start_lsn,
            time=time, epoch=lease.epoch,
        )  # fmt: skip
        name, mark = _new_segment(
            store, identity, start, lease.epoch, SchemaBook(), log_id=log_id, whole=True, now=now()
        )
        state = Recovered(
            segment=name,
            identity=identity,
            log_id=log_id,
            mark=mark,
            schemas=SchemaBook(),
            builder=index.IndexBuilder(time_before=time),
        )
        marks.write(store, mark, durably=True)
        return cls(store, lease, state, layout, now=now)

    def _adopt(self, state: Recovered) -> None:
        self.identity = state.identity
        self.log_id = state.log_id
        self.mark = state.mark
        """The end of the whole and durable transactions."""
        self.last = state.mark.position
        """The last position written, also of an open transaction."""
        self._segment = state.segment
        self._schemas = state.schemas
        self._builder = state.builder
        self._time = state.mark.time
        self._whole = True
        self._open_file()

    def _open_file(self) -> AppendFile:
        self.close()
        self._index = self._store.append_to(self._segment.index)
        self._file = self._store.append_to(self._segment.file)
        return self._file

    @property
    def whole(self) -> bool:
        """Whether the log ends at a transaction boundary, visible to readers."""
        return self._whole

    def append(self, entry: Entry) -> None:
        """Write an entry and return when it is durable."""
        self._lease.check()
        self._check_order(entry)
        if self._file is None:
            raise LogError("the appender is closed")
        try:
            self._write(entry, self._file)
        except BaseException:
            # Half an entry may be on disk, and after a failed fsync its content is unknown.
            self.close()
            raise

    def _write(self, entry: Entry, file: AppendFile) -> None:
        if file.size >= self._layout.segment_bytes:
            file = self._roll()
        start = file.size
        buffers = encode_entry(entry, epoch=self._lease.epoch, codec=self._layout.codec)
        file.write(buffers)
        file.sync()
        self._note(entry, start)
        if entry.ends:
            self._publish(entry, file.size)

    def _check_order(self, entry: Entry) -> None:
        if entry.kind is Kind.FRAGMENT:
            continues = not self._whole and not entry.begins and entry.xid == self._xid
            fits = continues or (self._whole and entry.begins)
        else:
            fits = self._whole
        ahead = self.last < entry.first <= entry.last if entry.changes else entry.last >= self.last
        if not fits or not ahead or entry.end_lsn < self.mark.end_lsn:
            raise MalformedError(
                f"an entry of positions {entry.first} to {entry.last} cannot follow {self.last}"
            )

    def _note(self, entry: Entry, start: int) -> None:
        self._schemas.note_entry(entry)
        self.last = entry.last
        self._time = max(self._time, entry.last_time)
        self._whole = entry.ends
        self._xid = entry.xid
        failpoint.hit("log.before-index")
        row = self._builder.add(start, entry)
        if row is not None:
            self._index.write([row.encode()])

    def _publish(self, entry: Entry, offset: int) -> None:
        mark = Mark(
            sequence=self._segment.sequence, offset=offset, position=entry.last,
            end_lsn=entry.end_lsn, time=self._time, epoch=self._lease.epoch,
        )  # fmt: skip
        failpoint.hit("log.before-mark")
        marks.write(self._store, mark)
        # Not before it is written: another thread acknowledges what the mark says.
        self.mark = mark
        failpoint.hit("log.after-mark")

    def _roll(self) -> AppendFile:
        self._index.sync()
        end = replace(
            self.mark, sequence=self._segment.sequence, position=self.last, time=self._time
        )
        self._segment, mark = _new_segment(
            self._store, self.identity, end, self._lease.epoch, self._schemas,
            log_id=self.log_id, whole=self._whole, now=self._now(),
        )  # fmt: skip
        self._builder = index.IndexBuilder(time_before=self._time)
        if self._whole:
            self.mark = mark
        return self._open_file()

    def change_identity(self, identity: Identity, *, end_lsn: Lsn | None = None) -> None:
        """Start a new segment with another identity: a new timeline, slot or publication.

        A new timeline may begin before the end of the log, at `end_lsn`, if no change follows it.
        """
        if identity != self.identity:
            self._lease.check()
            if self._file is None:
                raise LogError("the appender is closed")
            self.identity = identity
            if end_lsn is not None:
                self.mark = replace(self.mark, end_lsn=end_lsn)
            self._roll()
            marks.write(self._store, self.mark)

    def forget_dropped(self, existing: Callable[[set[int]], set[int]]) -> int:
        """Leave dropped tables out of the segments to come; how many there were.

        Only between sessions: PostgreSQL states a relation again before the first change of the
        next one. `existing` returns the oids that PostgreSQL still knows.
        """
        known = self._schemas.relations()
        dropped = known - existing(known) if known else set()
        self._schemas.forget(dropped)
        return len(dropped)

    def rewind(self) -> None:
        """Remove an open transaction: PostgreSQL sends it again from its first row."""
        if self._whole:
            return
        # Recovery truncates the log, so check first that no other capture has taken it over.
        self._lease.check()
        self.close()
        state = recover(self._store)
        assert state is not None
        self._adopt(state)

    def close(self) -> None:
        """Close the files. Everything appended is already durable."""
        if self._file is not None:
            self._file.close()
            self._index.close()
            self._file = None


def _new_segment(
    store: Store,
    identity: Identity,
    end: Mark,
    epoch: int,
    schemas: SchemaBook,
    *,
    log_id: str,
    whole: bool,
    now: datetime,
) -> tuple[SegmentName, Mark]:
    """Create the segment that follows `end`; its name and the mark after its first entry."""
    header = SegmentHeader(
        identity=identity,
        log_id=log_id,
        sequence=end.sequence + 1,
        epoch=epoch,
        base=end.position,
        base_end_lsn=end.end_lsn,
        base_time=end.time,
        created_at=now.isoformat(timespec="seconds"),
    )
    opening = schemas.entry(end.position, end_lsn=end.end_lsn, time=end.time, ends=whole)
    data = header.encode() + b"".join(encode_entry(opening, epoch=epoch))
    name = SegmentName(header.sequence, end.end_lsn)
    store.remove(name.index)
    store.write_atomic(name.file, data)
    mark = replace(end, sequence=name.sequence, offset=len(data), epoch=epoch)
    return name, mark
