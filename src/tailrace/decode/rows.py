"""Row images of many messages at once.

`pos` is where each row stands in the entry's bytes. A column is read for all rows before the next
column, so the work is a handful of numpy calls a column whatever the number of rows. Numbers are
gathered from views that begin a number at every byte. Cells come out by one `take` a column from an
array whose values are the stretches between cell borders: no byte is touched from Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tailrace.decode.group import Cells
from tailrace.errors import MalformedError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tailrace.decode.group import Image

    Indices = NDArray[np.int64]

_T, _N, _U, _B = (ord(letter) for letter in "tnub")
_MAX_BODY = (1 << 31) - 1


class Body:
    """An entry's bytes, and numbers at any place in them."""

    __slots__ = ("bytes", "data", "size")

    def __init__(self, data: bytes) -> None:
        if len(data) > _MAX_BODY:
            raise MalformedError(f"an entry of {len(data)} bytes is too large to decode")
        self.data = data
        self.size = len(data)
        self.bytes: NDArray[np.uint8] = np.frombuffer(data, np.uint8)

    def number(self, at: Indices, kind: str) -> NDArray[np.int64]:
        """The big-endian number at each of these places."""
        dtype = np.dtype(kind)
        count = self.size - dtype.itemsize + 1
        if len(at) and (count < 1 or int(at.max()) >= count):
            raise MalformedError("a message ends inside a number")
        everywhere: NDArray[np.int64]
        everywhere = np.ndarray((max(count, 0),), dtype, self.data, strides=(1,))
        return everywhere[at]

    def byte(self, at: Indices) -> NDArray[np.uint8]:
        """The byte at each of these places."""
        if len(at) and int(at.max()) >= self.size:
            raise MalformedError("a message ends too early")
        return self.bytes[at]


def read_rows(
    body: Body, pos: Indices, ends: Indices, columns: int, what: str
) -> tuple[Image, Indices]:
    """The row images at `pos`, all with `columns` columns, and where each one ends."""
    found = body.number(pos, ">i2")
    if (found != columns).any():
        wrong = int(found[found != columns][0])
        raise MalformedError(f"a row of {what} has {wrong} columns, its relation has {columns}")
    count = len(pos)
    # Cell borders, row by row: the start and the end of each cell, and of the gaps between them.
    borders = np.empty((count, columns, 2), np.int32)
    kinds = np.empty((columns, count), np.uint8)
    pos = pos + 2
    for column in range(columns):
        kind = body.byte(pos)
        kinds[column] = kind
        value = kind == _T
        start = pos + 1
        if value.all():
            start += 4
            pos = start + body.number(pos + 1, ">i4")
        else:
            _check_kinds(kind, what)
            pos = start.copy()
            at = np.flatnonzero(value)
            start[at] += 4
            pos[at] = start[at] + body.number(pos[at], ">i4")
        if (pos > ends).any() or (pos < start).any():
            raise MalformedError(f"a value of {what} is longer than its message")
        borders[:, column, 0] = start
        borders[:, column, 1] = pos
    return _image(body, borders, kinds), pos


def _check_kinds(kind: NDArray[np.uint8], what: str) -> None:
    if (kind == _B).any():
        raise MalformedError(f"a row of {what} has binary values, which capture never asks for")
    if not ((kind == _T) | (kind == _N) | (kind == _U)).all():
        raise MalformedError(f"a row of {what} has a value of an unknown kind")


def _image(body: Body, borders: NDArray[np.int32], kinds: NDArray[np.uint8]) -> Image:
    count, columns, _ = borders.shape
    if not count or not columns:
        return tuple(Cells(pa.array([], pa.binary())) for _ in range(columns))
    stretches = pa.Array.from_buffers(
        pa.binary(),
        count * columns * 2 - 1,
        [None, pa.py_buffer(borders.reshape(-1)), pa.py_buffer(body.data)],
    )
    step = columns * 2
    every = np.arange(0, count * step, step, dtype=np.int32)
    cells = []
    for column in range(columns):
        kind = kinds[column]
        missing = kind != _T
        mask = missing if missing.any() else None
        values = stretches.take(pa.array(every + column * 2, mask=mask))
        unchanged = kind == _U if mask is not None else None
        if unchanged is not None and not unchanged.any():
            unchanged = None
        cells.append(Cells(values, unchanged))
    return tuple(cells)
