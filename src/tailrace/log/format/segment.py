"""Segments: files of entries. Names, headers, and walking the entries of one.

A segment's name is its sequence number and the LSN it begins at:
`0000000042-00000000015d3a28.seg`, with its index beside it as `.idx`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from tailrace.errors import CorruptError, MalformedError
from tailrace.log.format import layout
from tailrace.position import Lsn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.log.format.entry import Entry
    from tailrace.log.store import Store

SUFFIX = ".seg"
_NAME = re.compile(r"([0-9]{10,19})-([0-9a-f]{16})\.seg")
_READ_AHEAD_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, order=True)
class SegmentName:
    """A segment's sequence number and first LSN, as in its file name."""

    sequence: int
    base_lsn: Lsn

    @property
    def file(self) -> str:
        """The segment's file."""
        return f"{self.sequence:010d}-{self.base_lsn:016x}{SUFFIX}"

    @property
    def index(self) -> str:
        """The index's file."""
        return f"{self.sequence:010d}-{self.base_lsn:016x}.idx"


def list_segments(store: Store) -> list[SegmentName]:
    """All segments in order; a hole in the sequence is corruption."""
    found = _listed(store)
    if _hole(found) is not None:
        # A listing is not atomic: retention may have been deleting meanwhile.
        found = _listed(store)
    hole = _hole(found)
    if hole is not None:
        before, after = hole
        raise CorruptError(f"{after.file} does not follow {before.file}: segments are missing")
    return found


def _listed(store: Store) -> list[SegmentName]:
    found = []
    for name in store.names():
        if not name.endswith(SUFFIX):
            continue
        match = _NAME.fullmatch(name)
        if match is None:
            raise CorruptError(f"{name} does not have a segment's name")
        found.append(SegmentName(int(match[1]), Lsn(int(match[2], 16))))
    return sorted(found)


def _hole(names: list[SegmentName]) -> tuple[SegmentName, SegmentName] | None:
    pairs = pairwise(names)
    return next((pair for pair in pairs if pair[1].sequence != pair[0].sequence + 1), None)


def read_header(store: Store, name: SegmentName) -> tuple[layout.SegmentHeader, int]:
    """A segment's header and the offset of its first entry; MalformedError when it is not one."""
    data = store.read(name.file, 0, layout.SEGMENT_HEADER_BYTES)
    size = layout.segment_header_bytes(data)
    header = layout.decode_segment_header(store.read(name.file, 0, size))
    if (header.sequence, header.base_end_lsn) != (name.sequence, name.base_lsn):
        raise MalformedError(
            f"{name.file} says it is segment {header.sequence} at {header.base_end_lsn}"
        )
    return header, size


@dataclass(frozen=True, slots=True)
class Placed:
    """An entry and the bytes it occupies in its segment."""

    start: int
    end: int
    entry: Entry


def walk(
    store: Store,
    name: SegmentName,
    start: int,
    end: int | None = None,
    *,
    bodies: bool = True,
    window_bytes: int | None = None,
) -> Iterator[Placed]:
    """The entries between two offsets. Raises MalformedError where the bytes stop making sense.

    Without `bodies` only headers are read: quick, but nothing is checked by checksum. A small
    `window_bytes` is for those who want one entry.
    """
    limit = store.size(name.file) if end is None else end
    window, window_at = b"", start
    while start < limit:
        offset = start - window_at
        header = window[offset : offset + layout.ENTRY_HEADER_BYTES]
        if len(header) < layout.ENTRY_HEADER_BYTES:
            length = (window_bytes or _READ_AHEAD_BYTES) if bodies else layout.ENTRY_HEADER_BYTES
            window, window_at, offset = store.read(name.file, start, length), start, 0
            header = window[: layout.ENTRY_HEADER_BYTES]
        frame = layout.decode_frame(header)
        stop = start + frame.total_bytes
        if stop > limit:
            raise MalformedError("the segment ends inside an entry")
        if not bodies:
            yield Placed(start, stop, frame.entry)
            start = stop
            continue
        body_at = offset + layout.ENTRY_HEADER_BYTES
        stored = memoryview(window)[body_at : body_at + frame.stored_bytes]
        if len(stored) < frame.stored_bytes:
            stored = memoryview(
                store.read(name.file, start + layout.ENTRY_HEADER_BYTES, frame.stored_bytes)
            )
        yield Placed(start, stop, layout.decode_entry(frame, header, stored))
        start = stop


def another_entry_after(store: Store, name: SegmentName, offset: int) -> bool:
    """Whether a whole, valid entry stands anywhere behind a damaged one.

    Tells corruption from a torn tail: the appender never begins an entry before the one in front
    of it is durable, so a valid successor proves that the damaged entry once was too.
    """
    data = store.read(name.file, offset, store.size(name.file) - offset)
    at = data.find(layout.ENTRY_MAGIC, 1)
    while at >= 0:
        header = data[at : at + layout.ENTRY_HEADER_BYTES]
        try:
            frame = layout.decode_frame(header)
            body = memoryview(data)[at + layout.ENTRY_HEADER_BYTES : at + frame.total_bytes]
            layout.decode_entry(frame, header, body)
        except MalformedError:
            at = data.find(layout.ENTRY_MAGIC, at + 1)
        else:
            return True
    return False
