"""The copy: a follower's log, written byte for byte as the leader sends it.

    write      bytes, in the order of the files, not yet durable
    publish    fsync, then the durable mark: readers on this machine see it, the leader may count it

A crash leaves bytes after the mark: whole entries that were not acknowledged yet, and a torn one.
Opening keeps the whole transactions among them, as capture does with its own log, and cuts the
rest. If bytes before the mark cannot be read in the last segment, the copy keeps what is before
them, and the leader sends the rest again; the segment stays in a file until then
(`tailrace.replica.kept`). The segments before it are the business of `tailrace.replica.scrub`.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, cast

import structlog

from tailrace.errors import CorruptError, MalformedError
from tailrace.log import lease, retention
from tailrace.log.format import mark as marks
from tailrace.log.format.segment import SegmentName, list_segments, read_header, walk
from tailrace.log.recovery import recover
from tailrace.log.segments import Segments
from tailrace.log.store import LocalStore, sync_folder
from tailrace.position import Lsn
from tailrace.replica import kept

if TYPE_CHECKING:
    from tailrace.log.format.mark import Mark
    from tailrace.log.recovery import Recovered
    from tailrace.log.store import LocalFile, Store
    from tailrace.position import Position
    from tailrace.replica.frames import Data, Marked

_BEGIN_SYNC_BYTES = 4 << 20
"""While a copy catches up, the disk writes all the time, not only at the end of each segment."""


class Copy:
    """The log of a follower, open for writing under the log's lock."""

    def __init__(self, store: LocalStore) -> None:
        self.store = store
        self.log_id = ""
        self.mark: Mark | None = None
        """The end of what is durable and whole; None without a log."""
        self.repairs = 0
        """Segments that were repaired, or that have to be sent again, because of damage."""
        self._next = (0, 0)
        self._file: LocalFile | None = None
        self._name: SegmentName | None = None
        self._unsynced: list[LocalFile] = []
        self._new_names = False
        self._must_recover = False
        """Whether bytes may be in the files that follow the mark."""
        self._hides = False
        """Whether readers read up to a mark of their own."""
        self._damaged = False
        """Whether a damaged segment is kept until its bytes are here again."""
        self._events = structlog.get_logger()

    def open(self) -> None:
        """Find the end of what can be used, and cut what follows it.

        On a full disk this may fail in the middle; `recover` has to succeed before anything else.
        """
        self._close_files()
        self._must_recover = True
        cut_torn_end(self.store)
        state = self._recovered()
        self.mark = None if state is None else state.mark
        self.log_id = "" if state is None else state.log_id
        self._limit_visible()
        self._damaged = kept.has_damaged(self.store)
        self._must_recover = False

    def distrust(self) -> None:
        """Let the next `recover` read the last segment again: the leader does not accept it."""
        self._must_recover = True

    def _recovered(self) -> Recovered | None:
        """Recover the log. What follows the damage in the last segment is given up.

        The segments before it stay: what was acknowledged is not given up, and readers need them.
        """
        while True:
            try:
                return recover(self.store)
            except CorruptError as error:
                self._events.error("replica.copy_damaged", code=error.code, reason=str(error))
                self._cut_damage()
                self.repairs += 1

    def _cut_damage(self) -> None:
        """Cut the last segment where it can no longer be read, and keep all of it in a file.

        The mark may name what cannot be read, so it is removed; recovery writes it anew.
        """
        marked = marks.NAME in self.store.names()
        for name in list_segments(self.store)[-1:]:
            kept.keep_damaged(self.store, name)
            end = _whole_end(self.store, name, None)
            if 0 < end < self.store.size(name.file):
                self.store.truncate(name.file, end)
            elif not end or not marked:
                _remove(self.store, name)
        self.store.remove(marks.NAME)

    def recover(self) -> None:
        """After a connection: keep what is whole of what was written since the last mark."""
        if self._must_recover:
            self.open()

    def _limit_visible(self) -> None:
        """What readers may see is never more than what is here."""
        visible = marks.peek(self.store, marks.VISIBLE)
        self._hides = visible is not None and self.mark is not None
        if visible is None or self.mark is None:
            self.store.remove(marks.VISIBLE)
        elif visible.place > self.mark.place:
            marks.write(self.store, self.mark, name=marks.VISIBLE, durably=True)

    def begin(self, log_id: str, sequence: int, offset: int) -> None:
        """Go on at a place: the end of this copy, or the beginning of a segment."""
        self._close_files()
        here = (sequence, 0) if self.mark is None else self.mark.place
        if (sequence, offset) != here:
            raise MalformedError(f"the leader begins at {sequence}:{offset}, but the copy ends "
                                 f"at {here[0]}:{here[1]}")  # fmt: skip
        self.log_id = log_id
        self._next = here
        if self.mark is not None:
            names = list_segments(self.store)
            self._open_file(next(name for name in names if name.sequence == sequence))

    def write(self, data: Data) -> None:
        """Write a piece where the last one ended."""
        name = SegmentName(data.sequence, Lsn(data.base_lsn))
        if data.index:
            self._write_index(name, data)
            return
        place = (data.sequence, data.offset)
        if place == (self._next[0] + 1, 0) and self._next[1]:
            self._next = place
        if place != self._next:
            raise MalformedError(f"the leader sent bytes at {place}, not at {self._next}")
        if self._name != name:
            if data.offset:
                raise MalformedError(f"the leader sent a middle part of {name.file}")
            self._open_file(name)
        assert self._file is not None
        self._must_recover = True
        self._file.write([cast("bytes", data.content)])
        self._next = (data.sequence, data.offset + len(data.content))
        if data.offset // _BEGIN_SYNC_BYTES != self._next[1] // _BEGIN_SYNC_BYTES:
            self._file.begin_sync(max(data.offset - _BEGIN_SYNC_BYTES, 0))

    def _open_file(self, name: SegmentName) -> None:
        if self._file is not None:
            self._unsynced.append(self._file)
        self._name = name
        self._file = self.store.append_to(name.file)
        self._new_names = True

    def _write_index(self, name: SegmentName, data: Data) -> None:
        """An index is a hint: it is not synced, and a torn one costs time only."""
        if data.offset == 0:
            self.store.remove(name.index)
        file = self.store.append_to(name.index)
        with contextlib.closing(file):
            file.write([cast("bytes", data.content)])

    def publish(self, marked: Marked) -> None:
        """Make everything up to the leader's mark durable and readable."""
        mark = marked.mark
        if mark.place != self._next:
            raise MalformedError(f"the leader's mark is at {mark.place}, its data at {self._next}")
        self._sync()
        marks.write(self.store, mark)
        self.mark = mark
        self._must_recover = False
        if marked.visible is not None:
            visible = min(mark, marked.visible, key=lambda each: each.place)
            marks.write(self.store, visible, name=marks.VISIBLE)
        elif self._hides:
            self.store.remove(marks.VISIBLE)
        self._hides = marked.visible is not None
        if self._damaged:
            self._damaged = kept.drop_damaged(self.store, mark)

    def _sync(self) -> None:
        for file in (*self._unsynced, *([self._file] if self._file else [])):
            file.sync()
        for file in self._unsynced:
            file.close()
        self._unsynced.clear()
        if self._new_names:
            sync_folder(self.store.folder)
            self._new_names = False

    def cut(self, sequence: int, offset: int) -> None:
        """Cut the log at a place, and keep what is cut: it is not in the leader's history."""
        self._close_files()
        names = [name for name in list_segments(self.store) if name.sequence >= sequence]
        for name in names:
            start = offset if name.sequence == sequence else 0
            kept.keep_cut(self.store, name, start, _epoch_of(self.store, name))
        self.store.remove(marks.NAME)
        for name in reversed(names):
            if name.sequence > sequence:
                _remove(self.store, name)
            elif offset:
                self.store.truncate(name.file, min(offset, self.store.size(name.file)))
            else:
                _remove(self.store, name)
        self.open()
        folder = str(kept.folder_of(self.store))
        self._events.warning("replica.cut", segment=sequence, offset=offset, kept=folder)

    def reset(self) -> None:
        """Remove the log: the leader no longer has what follows it."""
        self._close_files()
        self.store.remove(marks.VISIBLE)
        self.store.remove(marks.NAME)
        for name in reversed(list_segments(self.store)):
            _remove(self.store, name)
        self.open()

    def note_epoch(self, epoch: int) -> None:
        """Remember the leader's epoch, durably: no leader of a lower one is accepted again."""
        lease.note_epoch(self.store, epoch)

    def delete_before(self, oldest: int) -> None:
        """Delete what the leader has deleted, unless a reader of this machine still needs it."""
        names = list_segments(self.store)
        if not names or names[0].sequence >= oldest or self.mark is None:
            return
        try:
            pinned = min([self.mark.position, *retention.pins(self.store).values()])
        except CorruptError as error:
            # Of a reader's pin: the copy goes on without deleting.
            self._events.warning("replica.not_deleted", code=error.code, reason=str(error))
            return
        retention.delete(self.store, self._done_with(names, oldest, pinned))

    def _done_with(
        self, names: list[SegmentName], oldest: int, pinned: Position
    ) -> list[SegmentName]:
        """The segments before `oldest` that hold nothing after `pinned`. What is left begins with
        a whole transaction, and with a segment that can be read."""
        log = Segments(self.store)
        for count in range(len(names) - 1, 0, -1):
            if names[count - 1].sequence < oldest:
                with contextlib.suppress(CorruptError):
                    base = log.header(names[count]).base
                    if base <= pinned and log.opens_whole(names[count]):
                        return names[:count]
        return []

    def _close_files(self) -> None:
        for file in (*self._unsynced, *([self._file] if self._file else [])):
            file.close()
        self._unsynced.clear()
        self._file = self._name = None

    def close(self) -> None:
        """Close the files. What was acknowledged is durable."""
        self._close_files()


def _epoch_of(store: Store, name: SegmentName) -> int:
    """The epoch that a segment names; 0 if it cannot be read."""
    with contextlib.suppress(MalformedError):
        return read_header(store, name)[0].epoch
    return 0


def cut_torn_end(store: Store) -> None:
    """Cut a copy at the first entry after its mark that is not whole.

    A leader's recovery takes a whole entry behind it for proof of damage; here several entries may
    have been on their way to the disk.
    """
    mark = marks.peek(store)
    for name in list_segments(store):
        if mark is not None and name.sequence < mark.sequence:
            continue
        start = mark.offset if mark is not None and name.sequence == mark.sequence else None
        end = _whole_end(store, name, start)
        if end < store.size(name.file):
            _remove_after(store, name)
            if end:
                store.truncate(name.file, end)
            else:
                _remove(store, name)
            return


def _whole_end(store: Store, name: SegmentName, start: int | None) -> int:
    """Where the whole entries of a segment end; 0 without a single one."""
    end = 0 if start is None else start
    with contextlib.suppress(MalformedError):
        at = read_header(store, name)[1] if start is None else start
        for placed in walk(store, name, at):
            end = placed.end
    return end


def _remove_after(store: Store, name: SegmentName) -> None:
    """Newest first, so that an interruption leaves no hole."""
    for each in reversed(list_segments(store)):
        if each.sequence > name.sequence:
            _remove(store, each)


def _remove(store: Store, name: SegmentName) -> None:
    store.remove(name.index)
    store.remove(name.file)
