"""Binary Arrow columns as numpy arrays (offsets, bytes, validity), and back to Arrow.

Offsets count from the first byte of `content`, also for a slice of a larger array. Most functions
here and all encoders rely on nulls without bytes: `tidy` ensures it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BINARY = pa.binary()


@lru_cache(maxsize=4096)
def constant(value: bytes) -> pa.BinaryScalar:
    """A value for Arrow's functions.

    pyarrow infers the type of a plain value, and tries to import `dateutil` each time it does.
    """
    return pa.scalar(value, _BINARY)


def offsets(values: pa.BinaryArray) -> NDArray[np.int32]:
    """Where each value begins in `content`, and the end of the last."""
    if not len(values):
        return np.zeros(1, np.int32)
    raw = np.frombuffer(values.buffers()[1], np.int32)
    mine = raw[values.offset : values.offset + len(values) + 1]
    return mine - mine[0] if mine[0] else mine


def content(values: pa.BinaryArray) -> NDArray[np.uint8]:
    """The bytes of all values, one after another."""
    data = values.buffers()[2] if len(values) else None
    if data is None:
        return np.empty(0, np.uint8)
    raw = np.frombuffer(values.buffers()[1], np.int32)
    return np.frombuffer(data, np.uint8)[raw[values.offset] : raw[values.offset + len(values)]]


def validity(values: pa.Array) -> pa.Buffer | None:
    """The bitmap of what is not null, or None when nothing is."""
    if not values.null_count:
        return None
    if not values.offset:
        return values.buffers()[0]
    return bitmap(valid(values))


def valid(values: pa.Array) -> NDArray[np.bool_]:
    """A mask of what is not null."""
    if not values.null_count:
        return np.ones(len(values), np.bool_)
    mask: NDArray[np.bool_] = values.is_valid().to_numpy(zero_copy_only=False)
    return mask


def bitmap(mask: NDArray[np.bool_]) -> pa.Buffer:
    """A mask as Arrow stores it."""
    return pa.py_buffer(np.packbits(mask, bitorder="little"))


def is_utf8(values: pa.BinaryArray) -> bool:
    """Whether every value is UTF-8; ASCII, the common case, is one pass over the bytes."""
    if content(values).max(initial=0) < 0x80:
        return True
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def utf8_mask(values: pa.BinaryArray) -> NDArray[np.bool_]:
    """Which values are UTF-8. Splits the column in halves as long as a part has invalid values."""
    if is_utf8(values):
        return np.ones(len(values), bool)
    if len(values) == 1:
        return np.zeros(1, bool)
    half = len(values) // 2
    return np.concatenate([utf8_mask(values.slice(0, half)), utf8_mask(values.slice(half))])


def column(
    data: NDArray[np.uint8], starts: NDArray[np.int32], nulls: pa.Buffer | None = None
) -> pa.BinaryArray:
    """A column from its bytes and offsets."""
    buffers = [nulls, pa.py_buffer(starts), pa.py_buffer(data)]
    return pa.BinaryArray.from_buffers(_BINARY, len(starts) - 1, buffers)


def starts_of(lengths: NDArray[np.integer] | NDArray[np.bool_]) -> NDArray[np.int32]:
    """Offsets of values with these lengths."""
    starts = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=starts[1:])
    return starts


def fixed(rows: NDArray[np.uint8], nulls: pa.Buffer | None = None) -> pa.BinaryArray:
    """A column whose values are the rows of a matrix."""
    count, width = rows.shape
    starts = np.arange(count + 1, dtype=np.int32) * np.int32(width)
    return column(np.ascontiguousarray(rows).reshape(-1), starts, nulls)


def ragged(
    rows: NDArray[np.uint8], keep: NDArray[np.bool_], nulls: pa.Buffer | None = None
) -> pa.BinaryArray:
    """A column whose values are the kept bytes of each row of a matrix."""
    return column(rows[keep], starts_of(np.count_nonzero(keep, axis=1)), nulls)


def tidy(values: pa.BinaryArray) -> pa.BinaryArray:
    """The same column without bytes under its nulls; Arrow allows bytes there."""
    if not values.null_count:
        return values
    present = valid(values)
    return blanked(values, present) if np.diff(offsets(values))[~present].any() else values


def blanked(values: pa.BinaryArray, keep: NDArray[np.bool_]) -> pa.BinaryArray:
    """A tidy column of the values to keep, null elsewhere."""
    if values.null_count:
        keep = keep & valid(values)
    lengths = np.diff(offsets(values))
    data = content(values)[np.repeat(keep, lengths)]
    return column(data, starts_of(np.where(keep, lengths, 0)), bitmap(keep))


def dense(values: pa.BinaryArray) -> pa.BinaryArray:
    """A tidy column with empty values in place of nulls."""
    if not values.null_count:
        return values
    return column(content(values), offsets(values))


def text_of(values: pa.Array) -> pa.BinaryArray:
    """Numbers in decimal, as bytes."""
    return values.cast(pa.string()).view(_BINARY)


def as_text(values: pa.BinaryArray) -> pa.StringArray:
    """The same column under Arrow's string type, unchecked: the caller knows it is UTF-8."""
    return values.view(pa.string())


def rows_of(positions: NDArray[np.integer], starts: NDArray[np.int32]) -> NDArray[np.int64]:
    """The index of the value that each byte position belongs to."""
    rows: NDArray[np.int64] = np.searchsorted(starts, positions, side="right") - 1
    return rows
