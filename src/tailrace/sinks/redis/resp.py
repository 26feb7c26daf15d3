r"""Columns as the bytes of a request: one join over whole columns, no Python per row.

A request is an array of bulk strings (RESP): `*2\r\n$3\r\nGET\r\n$1\r\nx\r\n`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.decode import columns

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from numpy.typing import NDArray

_EMPTY = columns.constant(b"")
_DOLLAR = columns.constant(b"$")
_END = columns.constant(b"\r\n")


class Bulks(NamedTuple):
    """Bulk strings in a row."""

    values: int
    """How many they are."""
    data: Any
    """A buffer of bytes."""


def bulks(values: Sequence[bytes]) -> Bulks:
    r"""A few values.

    >>> bulks([b"GET", b"x"])
    Bulks(values=2, data=b'$3\r\nGET\r\n$1\r\nx\r\n')
    """
    return Bulks(len(values), b"".join(b"$%d\r\n%b\r\n" % (len(each), each) for each in values))


def column_bulks(*parts: pa.BinaryArray | bytes) -> Bulks:
    r"""The values of several columns, row by row. A constant is a value of every row.

    >>> made = column_bulks(pa.array([b"a", b"bc"], pa.binary()), b"x")
    >>> made.values, bytes(made.data)
    (4, b'$1\r\na\r\n$1\r\nx\r\n$2\r\nbc\r\n$1\r\nx\r\n')
    """
    rows = next(len(part) for part in parts if not isinstance(part, bytes))
    return Bulks(rows * len(parts), columns.content(row_bulks(*parts)))


def row_bulks(*parts: pa.BinaryArray | bytes) -> pa.BinaryArray:
    """One value per row, with its bulk strings."""
    pieces: list[pa.BinaryArray | pa.BinaryScalar] = []
    for part in parts:
        if isinstance(part, bytes):
            pieces.append(columns.constant(bulks([part]).data))
        else:
            pieces += [_DOLLAR, digits(pc.binary_length(part)), _END, part, _END]
    return join(*pieces)


def join(*pieces: pa.BinaryArray | pa.BinaryScalar) -> pa.BinaryArray:
    """The pieces of each row in one value."""
    return pc.binary_join_element_wise(*pieces, _EMPTY)


def digits(numbers: pa.Array | NDArray[np.integer]) -> pa.BinaryArray:
    """Numbers in decimal."""
    array = pa.array(numbers) if isinstance(numbers, np.ndarray) else numbers
    return array.cast(pa.string()).cast(pa.binary())


def request(*parts: Bulks) -> list[Any]:
    """The bytes of a request, in pieces."""
    count = sum(part.values for part in parts)
    return [b"*%d\r\n" % count, *(part.data for part in parts if part.values)]
