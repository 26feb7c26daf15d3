"""Segments: files of entries. Their names, their headers, and reading their entries.

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
    """All segments in order. Raises CorruptError if one is missing between two others."""
    names = _listed(store)
    if _hole(names) is not None:
        # A listing is not atomic: retention may have deleted segments meanwhile.
        names = _listed(store)
    hole = _hole(names)
    if hole is not None:
        before, after = hole
        raise CorruptError(f"{after.file} does not follow {before.file}: segments are missing")
    return names


def _listed(store: Store) -> list[SegmentName]:
    names = []
    for name in store.names():
        if not name.endswith(SUFFIX):
            continue
        match = _NAME.fullmatch(name)
        if match is None:
            raise CorruptError(f"{name} is not a valid name of a segment")
        names.append(SegmentName(int(match[1]), Lsn(int(match[2], 16))))
    return sorted(names)


def _hole(names: list[SegmentName]) -> tuple[SegmentName, SegmentName] | None:
    pairs = pairwise(names)
    return next((pair for pair in pairs if pair[1].sequence != pair[0].sequence + 1), None)


def read_header(store: Store, name: SegmentName) -> tuple[layout.SegmentHeader, int]:
    """The header of a segment and the offset of its first entry. Raises MalformedError."""
    data = store.read(name.file, 0, layout.SEGMENT_HEADER_BYTES)
    size = layout.segment_header_bytes(data)
    header = layout.decode_segment_header(store.read(name.file, 0, size))
    if (header.sequence, header.base_end_lsn) != (name.sequence, name.base_lsn):
        raise MalformedError(
            f"the header of {name.file} names segment {header.sequence} at {header.base_end_lsn}"
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
    """The entries between two offsets. Raises MalformedError at the first invalid entry.

    Without `bodies` only headers are read: fast, but without checksums. The file is read in windows
    of 1 MiB; a caller that needs one entry passes a small `window_bytes`.
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
    """Whether a whole, valid entry follows a damaged one.

    Distinguishes corruption from a torn tail: the appender starts an entry only when the one before
    it is durable, so a valid successor proves that the damaged entry was durable once.
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
