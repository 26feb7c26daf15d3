"""Lines of COPY's text, where they lie in a buffer, and how they are found between their headers.

PostgreSQL sends a message a row: `d`, a length of four bytes that counts itself, the line. A line
has one newline, its last byte, as COPY's text format escapes all others; so the newlines of a
buffer tell where messages end, and the lengths whether that is true.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

ROW = ord("d")
HEADER_BYTES = 5
_NEWLINE = ord("\n")
_PIECE_BYTES = 1 << 18
_LENGTH = np.dtype(">u4")


@dataclass(frozen=True, slots=True)
class Lines:
    """Whole lines in a buffer, one or more.

    Between two of them is nothing, or bytes that are neither tabs nor newlines.
    """

    data: NDArray[np.uint8]
    begins: NDArray[np.int64]
    ends: NDArray[np.int64]
    """Behind their newlines."""

    def __len__(self) -> int:
        return len(self.begins)

    @classmethod
    def of(cls, text: bytearray, sizes: Sequence[int]) -> Lines:
        """Lines of these sizes, one behind another."""
        taken = np.array(sizes, np.int64)
        ends = np.cumsum(taken)
        return cls(np.frombuffer(text, np.uint8), ends - taken, ends)

    def text(self) -> memoryview:
        """The lines with nothing between them."""
        if np.array_equal(self.begins[1:], self.ends[:-1]):
            return self.data[self.begins[0] : self.ends[-1]].data
        return memoryview(gathered(self.data, self.begins, self.ends).buffers()[2])


def gathered(
    data: NDArray[np.uint8],
    begins: NDArray[np.integer],
    ends: NDArray[np.integer],
    nulls: NDArray[np.int64] | None = None,
) -> pa.BinaryArray:
    """What lies between these places, in a column of its own; null at the indexes in `nulls`."""
    count = len(begins)
    # Every other value is what lies between two that are wanted.
    offsets = np.empty(2 * count + 1, np.int32)
    offsets[:-1:2], offsets[1::2] = begins, ends
    offsets[-1] = ends[-1]
    validity = None
    if nulls is not None and len(nulls):
        valid = np.ones(2 * count, np.bool_)
        valid[2 * nulls] = False
        validity = pa.py_buffer(np.packbits(valid, bitorder="little"))
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(data)]
    every_other = pa.array(np.arange(0, 2 * count, 2, dtype=np.int32))
    values = pa.BinaryArray.from_buffers(pa.binary(), 2 * count, buffers)
    return pc.take(values, every_other, boundscheck=False)


def places(data: NDArray[np.uint8], first: int, last: int) -> NDArray[np.int32]:
    """Where bytes from `first` to `last` are. By pieces: what is made on the way stays in cache."""
    found = []
    for begin in range(0, len(data), _PIECE_BYTES):
        above = data[begin : begin + _PIECE_BYTES] - np.uint8(first)
        within = np.less_equal(above, last - first, out=above.view(np.bool_))
        found.append(np.flatnonzero(within).astype(np.int32) + np.int32(begin))
    return np.concatenate(found) if found else np.empty(0, np.int32)


def lengths(data: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """The number that begins at each byte."""
    return np.ndarray(max(len(data) - 3, 0), _LENGTH, data, strides=(1,))


def framed(data: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Where messages of a line each begin, and where the last of them ends.

    From the start of `data`, where one begins, up to the first that is something else or not whole.
    """
    newlines = places(data, _NEWLINE, _NEWLINE)
    edges = np.empty(len(newlines) + 1, np.int64)
    edges[0], edges[1:] = 0, newlines + 1
    # A newline in a header is a byte of its length, so at most four bytes behind the last true one.
    # A message is longer, and one whose length has such a byte has ten bytes and more: what is
    # near the one before is in a header, and what is not is none.
    near = np.diff(edges) <= HEADER_BYTES
    if near.any():
        edges = edges[np.concatenate([[True], ~near])]
    begins, ends = edges[:-1], edges[1:]
    right = (data[begins] == ROW) & (begins + lengths(data)[begins + 1] + 1 == ends)
    return edges if right.all() else edges[: np.argmin(right) + 1]
