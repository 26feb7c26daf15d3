"""The durable mark: how far the log may be read.

After every fsync the appender overwrites one small record with the end of the last whole, durable
transaction. Readers in other processes read up to the mark and no further. The record itself is not
fsynced: after a power cut it may be older than the log, until capture starts and recovers the log.

Where readers have to wait for a quorum of followers, a second mark of the same form, `visible`,
follows the durable one, and readers read up to it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crc32c import crc32c

from tailrace.errors import CorruptError
from tailrace.position import Lsn, Position

if TYPE_CHECKING:
    from tailrace.log.store import Store

NAME = "durable"
VISIBLE = "visible"
_RECORD = struct.Struct("<4sHHQQQQQqQ")
_CRC = struct.Struct("<I")
_MAGIC = b"TRdm"
_VERSION = 1
_READ_ATTEMPTS = 100
RECORD_BYTES = _RECORD.size + _CRC.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """The end of the whole and durable transactions: in the files and in the stream."""

    sequence: int
    offset: int
    position: Position
    end_lsn: Lsn
    time: int
    """Commit time of the last transaction, microseconds since 2000-01-01 UTC."""
    epoch: int

    @property
    def place(self) -> tuple[int, int]:
        """Where the files end: what orders two marks of one log."""
        return self.sequence, self.offset

    def encode(self) -> bytes:
        """The record as stored."""
        record = _RECORD.pack(
            _MAGIC, _VERSION, 0, self.sequence, self.offset, self.position.lsn,
            self.position.ordinal, self.end_lsn, self.time, self.epoch,
        )  # fmt: skip
        return record + _CRC.pack(crc32c(record))


def decode(data: bytes) -> Mark | None:
    """The mark; None if the record is torn. Raises CorruptError for one of a later release."""
    record, crc = data[: _RECORD.size], data[_RECORD.size : _RECORD.size + _CRC.size]
    if len(crc) < _CRC.size or _CRC.unpack(crc)[0] != crc32c(record):
        return None
    magic, version, _, sequence, offset, lsn, ordinal, end_lsn, time, epoch = _RECORD.unpack(record)
    if magic != _MAGIC:
        return None
    if version != _VERSION:
        raise CorruptError(
            f"the durable mark has format version {version}; this release reads {_VERSION}",
            hint="Read the log with the release that wrote it, or upgrade.",
        )
    return Mark(
        sequence=sequence, offset=offset, position=Position(Lsn(lsn), ordinal),
        end_lsn=Lsn(end_lsn), time=time, epoch=epoch,
    )  # fmt: skip


def peek(store: Store, name: str = NAME) -> Mark | None:
    """The mark; None if it is missing or torn."""
    try:
        return decode(store.read(name, 0, RECORD_BYTES))
    except FileNotFoundError:
        return None


def read(store: Store, name: str = NAME) -> Mark | None:
    """The current mark; None if there is none yet. Retries while a record is being written."""
    for _ in range(_READ_ATTEMPTS):
        try:
            mark = decode(store.read(name, 0, RECORD_BYTES))
        except FileNotFoundError:
            return None
        if mark is not None:
            return mark
    raise CorruptError(
        f"the {name} mark is unreadable",
        hint="Start `tailrace capture` once: it recovers the log and rewrites the mark.",
    )


def write(store: Store, mark: Mark, *, name: str = NAME, durably: bool = False) -> None:
    """Publish a new end. With `durably`, the file also exists after a power cut."""
    if not durably:
        try:
            store.overwrite(name, mark.encode())
        except FileNotFoundError:
            durably = True
    if durably:
        store.write_atomic(name, mark.encode())


def for_readers(store: Store) -> str:
    """The name of the mark up to which readers read."""
    try:
        store.size(VISIBLE)
    except FileNotFoundError:
        return NAME
    return VISIBLE
