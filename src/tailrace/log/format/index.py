"""The sparse index of a segment: where to start reading, and where the schemas changed.

One row for an entry every `every_bytes`, and one for each entry that carries Relation or Type
messages. The index is derived from the segment: a missing or damaged row costs time, not
correctness, because a reader checks the entry that a row points at.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crc32c import crc32c

from tailrace.position import Lsn, Position

if TYPE_CHECKING:
    from tailrace.log.format.entry import Entry
    from tailrace.log.store import Store

_ROW = struct.Struct("<QQQqII")
ROW_BYTES = _ROW.size
EVERY_BYTES = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An entry at `offset`; everything before it in the segment is older than `first`."""

    offset: int
    first: Position
    time_before: int
    """The latest commit time among the entries before this one."""
    schemas: bool

    def encode(self) -> bytes:
        """The row as stored."""
        head = _ROW.pack(
            self.offset, self.first.lsn, self.first.ordinal, self.time_before, self.schemas, 0
        )[:-4]
        return head + crc32c(head).to_bytes(4, "little")


class IndexBuilder:
    """Decides which entries get a row, as they are appended or scanned."""

    def __init__(self, *, time_before: int, every_bytes: int = EVERY_BYTES) -> None:
        self._every_bytes = every_bytes
        self._next = 0
        self._time = time_before

    def add(self, offset: int, entry: Entry) -> Row | None:
        """The row for this entry, if it gets one."""
        row = None
        if offset >= self._next or entry.schemas:
            row = Row(
                offset=offset,
                first=entry.first,
                time_before=self._time,
                schemas=bool(entry.schemas),
            )
            self._next = offset + self._every_bytes
        self._time = max(self._time, entry.last_time)
        return row


def read(store: Store, name: str) -> list[Row]:
    """The rows up to the first damaged one; empty if there is no index."""
    try:
        data = store.read(name, 0, store.size(name))
    except FileNotFoundError:
        return []
    rows = []
    for at in range(0, len(data) - _ROW.size + 1, _ROW.size):
        raw = data[at : at + _ROW.size]
        if crc32c(raw[:-4]).to_bytes(4, "little") != raw[-4:]:
            break
        offset, lsn, ordinal, time_before, schemas, _ = _ROW.unpack(raw)
        row = Row(
            offset=offset,
            first=Position(Lsn(lsn), ordinal),
            time_before=time_before,
            schemas=bool(schemas),
        )
        rows.append(row)
    return rows
