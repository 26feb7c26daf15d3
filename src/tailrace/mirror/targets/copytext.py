"""Columns as the text of PostgreSQL's COPY, thousands of rows at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.decode import columns

if TYPE_CHECKING:
    from collections.abc import Sequence

_ESCAPED = {ord("\\"): rb"\\", ord("\t"): rb"\t", ord("\n"): rb"\n", ord("\r"): rb"\r"}
_SPECIAL = np.zeros(256, bool)
_SPECIAL[list(_ESCAPED)] = True
_NOTHING = pa.scalar(b"", pa.binary())


def copy_text(arrays: Sequence[pa.Array]) -> memoryview:
    """The rows that these columns make: tabs between, `\\N` for NULL.

    >>> bytes(copy_text([pa.array([1, None]), pa.array(["a\\tb", ""])]))
    b'1\\ta\\\\tb\\n\\\\N\\t\\n'
    """
    cells = [_cells(array) for array in arrays]
    cells[-1] = _joined([cells[-1], _NOTHING], b"\n")
    rows = cells[0] if len(cells) == 1 else _joined(cells, b"\t")
    return memoryview(columns.content(rows))  # type: ignore[arg-type]


def _joined(cells: Sequence[pa.BinaryArray | pa.Scalar], between: bytes) -> pa.BinaryArray:
    return pc.binary_join_element_wise(
        *cells, pa.scalar(between, pa.binary()), null_handling="replace", null_replacement=rb"\N"
    )


def _cells(array: pa.Array) -> pa.BinaryArray:
    if pa.types.is_binary(array.type):
        return _bytes(array)
    if pa.types.is_string(array.type):
        return _escaped(columns.tidy(array.view(pa.binary())))
    return columns.text_of(array)


def _bytes(values: pa.BinaryArray) -> pa.BinaryArray:
    """PostgreSQL's hexadecimal form; the backslash in front is COPY's, too."""
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    data = columns.content(tidy := columns.tidy(values))
    pairs = np.empty((len(data), 2), np.uint8)
    pairs[:, 0], pairs[:, 1] = digits[data >> 4], digits[data & 15]
    starts = columns.offsets(tidy) * np.int32(2)
    text = columns.column(pairs.reshape(-1), starts, columns.validity(tidy))
    return pc.binary_join_element_wise(pa.scalar(rb"\\x", pa.binary()), text, _NOTHING)


def _escaped(values: pa.BinaryArray) -> pa.BinaryArray:
    """What COPY would take for its own. Only rows that need it are touched."""
    data = columns.content(values)
    # Looking for one byte is some twenty times as quick as looking each byte up.
    raw = data.tobytes()
    if not any(code in raw for code in _ESCAPED):
        return values
    positions = np.flatnonzero(_SPECIAL[data])
    mask = np.zeros(len(values), bool)
    mask[columns.rows_of(positions, columns.offsets(values))] = True
    chosen = pa.array(mask)
    slow = values.filter(chosen)
    for code, new in _ESCAPED.items():
        slow = pc.replace_substring(slow, bytes([code]), new)
    return pc.replace_with_mask(values, chosen, slow)
