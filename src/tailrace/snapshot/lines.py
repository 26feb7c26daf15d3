"""Lines of COPY's text format in a buffer, and how to find them between message headers.

PostgreSQL sends one CopyData message per row: `d`, a four-byte length that includes itself, and the
line. A line has exactly one newline, its last byte, because the text format escapes all others. So
the newlines of a buffer are candidates for message ends, and the lengths confirm them.
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
    """After the newlines."""

    def __len__(self) -> int:
        return len(self.begins)

    @classmethod
    def of(cls, text: bytearray, sizes: Sequence[int]) -> Lines:
        """Adjacent lines of these sizes."""
        widths = np.array(sizes, np.int64)
        ends = np.cumsum(widths)
        return cls(np.frombuffer(text, np.uint8), ends - widths, ends)

    def text(self) -> memoryview:
        """The lines with nothing between them."""
        if np.array_equal(self.begins[1:], self.ends[:-1]):
            return self.data[self.begins[0] : self.ends[-1]].data
        return memoryview(gather(self.data, self.begins, self.ends).buffers()[2])


def gather(
    data: NDArray[np.uint8],
    begins: NDArray[np.integer],
    ends: NDArray[np.integer],
    nulls: NDArray[np.int64] | None = None,
) -> pa.BinaryArray:
    """The slices `data[begin:end]` as a column; null at the indexes in `nulls`."""
    count = len(begins)
    # An Arrow column over `data` itself: even values are the slices, odd ones the bytes in between.
    offsets = np.empty(2 * count + 1, np.int32)
    offsets[:-1:2], offsets[1::2] = begins, ends
    offsets[-1] = ends[-1]
    validity = None
    if nulls is not None and len(nulls):
        valid = np.ones(2 * count, np.bool_)
        valid[2 * nulls] = False
        validity = pa.py_buffer(np.packbits(valid, bitorder="little"))
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(data)]
    even = pa.array(np.arange(0, 2 * count, 2, dtype=np.int32))
    values = pa.BinaryArray.from_buffers(pa.binary(), 2 * count, buffers)
    return pc.take(values, even, boundscheck=False)


def find_bytes(data: NDArray[np.uint8], first: int, last: int) -> NDArray[np.int32]:
    """The offsets of bytes from `first` to `last`. In pieces: the temporaries stay in cache."""
    offsets = []
    for begin in range(0, len(data), _PIECE_BYTES):
        above = data[begin : begin + _PIECE_BYTES] - np.uint8(first)
        within = np.less_equal(above, last - first, out=above.view(np.bool_))
        offsets.append(np.flatnonzero(within).astype(np.int32) + np.int32(begin))
    return np.concatenate(offsets) if offsets else np.empty(0, np.int32)


def lengths(data: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """The big-endian 32-bit number at each byte offset."""
    return np.ndarray(max(len(data) - 3, 0), _LENGTH, data, strides=(1,))


def message_edges(data: NDArray[np.uint8]) -> NDArray[np.int64]:
    """The begins of the CopyData messages at the start of `data`, and the end of the last one.

    Ends before the first message that is incomplete or of another type.
    """
    newlines = find_bytes(data, _NEWLINE, _NEWLINE)
    edges = np.empty(len(newlines) + 1, np.int64)
    edges[0], edges[1:] = 0, newlines + 1
    # A byte of a length may look like a newline. Such an edge is at most five bytes after the one
    # before, and an edge between messages is not: a message has at least six bytes. Nor is it that
    # near to a false edge in its own header: a length with a byte 10 is at least 10.
    near = np.diff(edges) <= HEADER_BYTES
    if near.any():
        edges = edges[np.concatenate([[True], ~near])]
    begins, ends = edges[:-1], edges[1:]
    valid = (data[begins] == ROW) & (begins + lengths(data)[begins + 1] + 1 == ends)
    return edges if valid.all() else edges[: np.argmin(valid) + 1]
