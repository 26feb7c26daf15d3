"""When positions became durable: the file `times` beside a log.

Entries have commit times, of the source's clock. How long a change waits in the log is known only
from when it came there, so capture notes after each fsync when the log ended where.

The file has two rings of notes: the last ones, and one per second of the last two hours. It is
never fsynced, and nothing but a latency depends on it: it may be missing, old or from another log.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from tailrace import private

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from tailrace.position import Lsn

    Notes = NDArray[np.void]

NAME = "times"
RING_NOTES = 8192
_MAGIC = b"TRtimes1"
_HEADER = struct.Struct("<8sQQ")
_NOTE = np.dtype([("lsn", "<u8"), ("time_us", "<i8")])
_RING_BYTES = RING_NOTES * _NOTE.itemsize
FILE_BYTES = _HEADER.size + 2 * _RING_BYTES
_COARSE_US = 1_000_000
_MARGIN = 64
"""The oldest notes of a full ring may be overwritten while it is read."""


class DurableTimes:
    """Notes when a log ended where. For the one process that appends to the log."""

    def __init__(self, file: int, counts: tuple[int, int], last: tuple[int, int]) -> None:
        self._file = file
        self._fine, self._coarse = counts
        self._last_lsn, self._coarse_us = last

    @classmethod
    def open(cls, folder: Path, end: Lsn) -> Self:
        """The notes of a log that ends at an LSN. Those of another log are dropped."""
        path = folder / NAME
        content = _content(path)
        if content is not None:
            counts, fine, coarse = _parse(content)
            last = int(fine["lsn"][-1]) if len(fine) else 0
            if last <= end:
                coarse_us = int(coarse["time_us"][-1]) if len(coarse) else 0
                return cls(os.open(path, os.O_WRONLY), counts, (last, coarse_us))
        path.unlink(missing_ok=True)
        with private.create_file(path) as file:
            # All of it, so that a note never needs space on a disk that has become full.
            file.write(_HEADER.pack(_MAGIC, 0, 0).ljust(FILE_BYTES, b"\0"))
        return cls(os.open(path, os.O_WRONLY), (0, 0), (0, 0))

    def note(self, lsn: Lsn, time_us: int) -> None:
        """The log is durable up to an LSN since a time, in microseconds since 1970."""
        if lsn <= self._last_lsn:
            return
        self._last_lsn = lsn
        note = struct.pack("<Qq", lsn, time_us)
        os.pwrite(self._file, note, _offset(0, self._fine))
        self._fine += 1
        if abs(time_us - self._coarse_us) >= _COARSE_US:
            os.pwrite(self._file, note, _offset(1, self._coarse))
            self._coarse += 1
            self._coarse_us = time_us
        # After the notes that it counts.
        os.pwrite(self._file, _HEADER.pack(_MAGIC, self._fine, self._coarse), 0)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


@dataclass(frozen=True, slots=True)
class Times:
    """Notes in order: the log was durable up to `lsns` since `times_us`."""

    lsns: NDArray[np.uint64]
    times_us: NDArray[np.int64]


def read(folder: Path) -> Times | None:
    """The notes of a log; None if there are none."""
    content = _content(folder / NAME)
    if content is None:
        return None
    _, fine, coarse = _parse(content)
    if not len(fine):
        return None
    older = int(np.searchsorted(coarse["lsn"], fine["lsn"][0]))
    rings = (coarse[:older], fine)
    return Times(*(np.concatenate([ring[name] for ring in rings]) for name in ("lsn", "time_us")))


def waits_us(notes: Times, lsns: NDArray[np.uint64], now_us: int) -> NDArray[np.int64]:
    """How long changes with these LSNs, which are sorted, have been in the log. Sorted.

    A change counts from the first note that covers it: for those older than all notes this is less
    than the truth. Changes after the last note are omitted. It takes time for each note between the
    first change and the last one, and hardly any for each change.
    """
    if not len(lsns):
        return np.empty(0, np.int64)
    first, last = np.searchsorted(notes.lsns, lsns[[0, -1]])
    upto = np.searchsorted(lsns, notes.lsns[first : last + 1], side="right")
    counts = np.diff(upto, prepend=0)
    ages: NDArray[np.int64] = np.maximum(now_us - notes.times_us[first : last + 1], 0)
    order = np.argsort(ages)
    return np.repeat(ages[order], counts[order])


def _offset(ring: int, count: int) -> int:
    return _HEADER.size + ring * _RING_BYTES + count % RING_NOTES * _NOTE.itemsize


def _content(path: Path) -> bytes | None:
    """The file; None if it is missing or of another form."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    return content if len(content) == FILE_BYTES and content.startswith(_MAGIC) else None


def _parse(content: bytes) -> tuple[tuple[int, int], Notes, Notes]:
    _, fine, coarse = _HEADER.unpack_from(content)
    return (fine, coarse), _ring(content, 0, fine), _ring(content, 1, coarse)


def _ring(content: bytes, number: int, count: int) -> Notes:
    """The notes of a ring in order."""
    ring: Notes = np.frombuffer(content, _NOTE, RING_NOTES, _offset(number, 0))
    if count <= RING_NOTES:
        return ring[:count]
    return np.roll(ring, -(count % RING_NOTES))[_MARGIN:]
