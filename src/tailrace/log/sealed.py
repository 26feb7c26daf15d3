"""Sealed segments: whether every byte of one can be read, found out in small steps.

`tailrace log verify` checks a whole log, `Reading` one segment that is no longer written: its
checksums, and that the next segment begins where it ends. It reads a large segment a slice at a
time, for a process that has other work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.errors import CorruptError, MalformedError, StorageError
from tailrace.log.format import index
from tailrace.log.format.segment import SegmentName, list_segments, read_header, walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.log.format.entry import Entry
    from tailrace.log.format.layout import SegmentHeader
    from tailrace.log.store import Store
    from tailrace.position import Lsn, Position


class Reading:
    """Reads one sealed segment from its beginning to its end."""

    def __init__(self, store: Store, name: SegmentName, following: SegmentHeader | None) -> None:
        self._store = store
        self._name = name
        self._following = following
        """The header of the next segment, if that can be read."""
        self.good_bytes = 0
        """So far everything can be read; 0: not even the header."""

    def slices(self, slice_bytes: int) -> Iterator[None]:
        """Read on, and pause after so many bytes.

        Raises CorruptError, also if the disk cannot read the file, and FileNotFoundError.
        """
        pause_at = slice_bytes
        try:
            for at in self._entries():
                self.good_bytes = at
                if at >= pause_at:
                    pause_at = at + slice_bytes
                    yield
        except (MalformedError, StorageError) as error:
            raise CorruptError(
                f"{self._name.file} at byte {self.good_bytes}: {error}", hint=error.hint
            ) from error

    def _entries(self) -> Iterator[int]:
        header, at = read_header(self._store, self._name)
        end = _End(header)
        yield at
        for placed in walk(self._store, self._name, at):
            end.note(placed.entry)
            yield placed.end
        end.check(self._following)


class _End:
    """What the segment after this one has to begin with."""

    def __init__(self, header: SegmentHeader) -> None:
        self._header = header
        self.position: Position = header.base
        self.end_lsn: Lsn = header.base_end_lsn
        self.time = header.base_time
        self.entries = 0

    def note(self, entry: Entry) -> None:
        self.entries += 1
        self.position = max(self.position, entry.last)
        self.time = max(self.time, entry.last_time)
        if entry.ends:
            self.end_lsn = max(self.end_lsn, entry.end_lsn)

    def check(self, following: SegmentHeader | None) -> None:
        if not self.entries:
            raise MalformedError("it has no first entry")
        if following is None:
            return
        here = self._header
        same = (here.log_id, here.identity.system_identifier)
        if same != (following.log_id, following.identity.system_identifier):
            raise MalformedError("it belongs to another log than the segment after it")
        if following.epoch < here.epoch:
            raise MalformedError(f"the segment after it has the lower epoch {following.epoch}")
        end_lsn = self.end_lsn
        if following.identity.timeline > here.identity.timeline:
            # A new timeline may begin before the end of the old one.
            end_lsn = min(end_lsn, following.base_end_lsn)
        begins = (following.base, following.base_end_lsn, following.base_time)
        if begins != (self.position, end_lsn, self.time):
            raise MalformedError(
                f"it ends after {self.position}, but the segment after it begins at "
                f"{following.base}"
            )


def header_after(store: Store, name: SegmentName) -> SegmentHeader | None:
    """The header of the next segment; None if it is missing or cannot be read."""
    for each in list_segments(store):
        if each.sequence == name.sequence + 1:
            try:
                return read_header(store, each)[0]
            except (MalformedError, StorageError, FileNotFoundError):
                return None
    return None


def index_is_whole(store: Store, name: SegmentName) -> bool:
    """Whether each row of an index can be read. A missing index is whole: it is only a hint."""
    try:
        size = store.size(name.index)
        return size == len(index.read(store, name.index)) * index.ROW_BYTES
    except FileNotFoundError:
        return True
    except StorageError:
        return False
