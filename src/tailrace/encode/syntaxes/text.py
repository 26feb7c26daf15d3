"""Text cells: escaping for JSON, and timestamps in ISO 8601. Only rows that need it are changed."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.decode import columns
from tailrace.decode.typed import four_digit_years

_QUOTE, _BACKSLASH = ord('"'), ord("\\")
_UTC, _UTC_PLACES = np.frombuffer(b"+00", np.uint8), np.arange(3, 0, -1)
_SHORT = {8: rb"\b", 9: rb"\t", 10: rb"\n", 12: rb"\f", 13: rb"\r", 34: rb"\"", 92: rb"\\"}


def escaped(values: pa.BinaryArray) -> pa.BinaryArray:
    """Escape the contents of JSON strings.

    Most columns have no special character, which one pass over the bytes shows. Otherwise the rows
    with special characters are filtered out and escaped character by character with Arrow.

    >>> escaped(pa.array([b"plain", b'say "hi"\\n'], pa.binary())).to_pylist()
    [b'plain', b'say \\\\"hi\\\\"\\\\n']
    """
    data = columns.content(values)
    special = data < 0x20
    special |= data == _QUOTE
    special |= data == _BACKSLASH
    if not special.any():
        return values
    positions = np.flatnonzero(special)
    mask = np.zeros(len(values), bool)
    mask[columns.rows_of(positions, columns.offsets(values))] = True
    chosen = pa.array(mask)
    slow = values.filter(chosen)
    codes = set(np.unique(data[positions]).tolist())
    # Backslashes first: the other replacements add backslashes.
    for code in sorted(codes, key=lambda code: code != _BACKSLASH):
        new = _SHORT.get(code, b"\\u%04x" % code)
        slow = pc.replace_substring(slow, bytes([code]), new)
    return pc.replace_with_mask(values, chosen, slow)


def iso_timestamps(values: pa.BinaryArray) -> pa.BinaryArray:
    """`2025-12-12 12:00:34.5` as `2025-12-12T12:00:34.5`; other text unchanged."""
    good = four_digit_years(values, 19)
    if not good.any():
        return values
    starts = columns.offsets(values)
    data = columns.content(values).copy()
    data[starts[:-1][good] + 10] = ord("T")
    return columns.column(data, starts, columns.validity(values))


def iso_instants(values: pa.BinaryArray) -> pa.BinaryArray:
    """`2025-12-12 12:00:34.5+00` as `2025-12-12T12:00:34.5Z`; other text unchanged."""
    good = four_digit_years(values, 22)
    starts = columns.offsets(values)
    data = columns.content(values).copy()
    good[good] = (data[starts[1:][good, None] - _UTC_PLACES] == _UTC).all(axis=1)
    if not good.any():
        return values
    ends = starts[1:][good]
    data[starts[:-1][good] + 10] = ord("T")
    data[ends - 3] = ord("Z")
    changed = columns.column(data, starts, columns.validity(values))
    cut = pc.binary_slice(changed, 0, -2)
    rest = ~good & columns.valid(values)
    return cut if not rest.any() else pc.if_else(pa.array(good), cut, values)
