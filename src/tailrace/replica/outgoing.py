"""What a leader sends of its log: the files from a place up to its durable mark, in pieces.

A sealed segment is sent to its end, then its index; the last one up to the mark. Bytes before the
mark never change, so they can be read while capture appends.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from tailrace.errors import CorruptError, MalformedError, PositionLostError
from tailrace.log.format.mark import Mark
from tailrace.log.format.segment import list_segments, read_header, walk
from tailrace.replica.frames import CHUNK_BYTES, Data

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.log.format.segment import SegmentName
    from tailrace.log.store import Store


class Outgoing:
    """The next bytes for one follower."""

    def __init__(self, store: Store, sequence: int, offset: int) -> None:
        self._store = store
        self.place = (sequence, offset)
        """Where the next piece begins."""
        self._names: dict[int, SegmentName] = {}

    def pieces(self, end: Mark) -> Iterator[Data | Mark]:
        """Everything up to a mark, with marks between. Raises PositionLostError if retention was
        faster.

        A follower that loses its connection goes on at the last mark, so there is one after every
        segment.
        """
        while self.place[0] < end.sequence:
            name = self._name(self.place[0])
            size = self._size(name)
            yield from self._upto(name, size)
            yield from self._index(name)
            between = self._mark_at_end(name, size)
            if between is not None:
                yield between
            self.place = (name.sequence + 1, 0)
        yield from self._upto(self._name(end.sequence), end.offset)
        yield end

    def _mark_at_end(self, name: SegmentName, size: int) -> Mark | None:
        """The mark at the end of a sealed segment, as the next one states it; None if a transaction
        is open there."""
        following = self._name(name.sequence + 1)
        try:
            epoch = read_header(self._store, name)[0].epoch
            header, start = read_header(self._store, following)
            opening = next(walk(self._store, following, start, bodies=False))
        except MalformedError as error:
            raise CorruptError(f"{following.file}: {error}", hint=error.hint) from error
        except FileNotFoundError as error:
            raise PositionLostError(f"retention removed {name.file}") from error
        if not opening.entry.ends:
            return None
        return Mark(
            sequence=name.sequence, offset=size, position=header.base,
            end_lsn=header.base_end_lsn, time=header.base_time, epoch=epoch,
        )  # fmt: skip

    def _upto(self, name: SegmentName, end: int) -> Iterator[Data]:
        while (offset := self.place[1]) < end:
            content = self._read(name.file, offset, min(CHUNK_BYTES, end - offset))
            if not content:
                raise CorruptError(f"{name.file} ends at byte {offset}, before its mark at {end}")
            self.place = (name.sequence, offset + len(content))
            yield Data(name.sequence, name.base_lsn, offset, index=False, content=content)

    def _index(self, name: SegmentName) -> Iterator[Data]:
        """The whole index of a sealed segment. It is small, and only a hint."""
        with contextlib.suppress(FileNotFoundError):
            content = self._store.read(name.index, 0, self._store.size(name.index))
            for offset in range(0, len(content), CHUNK_BYTES):
                part = content[offset : offset + CHUNK_BYTES]
                yield Data(name.sequence, name.base_lsn, offset, index=True, content=part)

    def segment(self, sequence: int) -> Iterator[Data]:
        """A sealed segment and its index, whole."""
        place, self.place = self.place, (sequence, 0)
        name = self._name(sequence)
        yield from self._upto(name, self._size(name))
        yield from self._index(name)
        self.place = place

    def _name(self, sequence: int) -> SegmentName:
        if sequence not in self._names:
            self._names = {name.sequence: name for name in list_segments(self._store)}
        if sequence not in self._names:
            raise PositionLostError(f"segment {sequence} is no longer in the log")
        return self._names[sequence]

    def _size(self, name: SegmentName) -> int:
        try:
            return self._store.size(name.file)
        except FileNotFoundError as error:
            raise PositionLostError(f"retention removed {name.file}") from error

    def _read(self, file: str, offset: int, length: int) -> bytes:
        try:
            return self._store.read(file, offset, length)
        except FileNotFoundError as error:
            raise PositionLostError(f"retention removed {file}") from error
