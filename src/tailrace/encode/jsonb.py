"""JSON text → MessagePack: the one cell that is decoded value by value.

A whole column is one call of the JSON decoder; packing is one call a cell. Numbers keep their
exact value: an integer that fits 64 bits is an integer, any other number is a float if that float
prints as the same number, and a string with its own digits if not.
"""

from __future__ import annotations

import json
import math
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import ormsgpack
import pyarrow as pa

from tailrace.decode import columns
from tailrace.encode.pieces import join

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

# A double prints every number of up to 15 digits as it was written; a sign or point may be with it.
_LONG = 16
_NUMERAL = np.zeros(256, bool)
_NUMERAL[np.frombuffer(b"0123456789.", np.uint8)] = True


def to_msgpack(values: pa.BinaryArray) -> pa.BinaryArray:
    """Each JSON text as the MessagePack of its value; nulls stay null."""
    given = values.drop_null() if values.null_count else values
    if not len(given):
        return pa.nulls(len(values), pa.binary())
    packed = _packed(given)
    lengths = np.zeros(len(values), np.int64)
    lengths[columns.valid(values)] = np.fromiter(map(len, packed), np.int64, len(packed))
    data = np.frombuffer(b"".join(packed), np.uint8)
    return columns.column(data, columns.starts_of(lengths), columns.validity(values))


def _packed(values: pa.BinaryArray) -> Sequence[bytes]:
    awkward = _awkward(values)
    body = columns.content(join([values, b","]))[:-1].tobytes()
    try:
        packed = [*map(ormsgpack.packb, orjson.loads(b"[" + body + b"]"))]
    except (orjson.JSONDecodeError, ormsgpack.MsgpackEncodeError):
        awkward = np.arange(len(values))
        packed = [b""] * len(values)
    for row in awkward.tolist():
        packed[row] = _pack_exactly(values[row].as_py())
    return packed


def _awkward(values: pa.BinaryArray) -> NDArray[np.int64]:
    """Rows with a number that a double may not hold: many digits, or an exponent."""
    data = columns.content(values)
    numeral = _NUMERAL[data]
    other = np.flatnonzero(~numeral)
    edges = np.concatenate([[-1], other, [len(data)]])
    long = edges[1:][np.diff(edges) > _LONG] - 1
    before = np.flatnonzero(((data | 0x20) == ord("e"))[1:-1] & numeral[:-2] & (data[2:] != 34))
    sign = (data[before + 2] == ord("+")) | (data[before + 2] == ord("-"))
    exponents = before[numeral[before + 2] | sign]
    positions = np.concatenate([long, exponents])
    return np.unique(columns.rows_of(positions, columns.offsets(values)))


def _pack_exactly(text: bytes) -> bytes:
    """One value, number by number; what no decoder takes stays text."""
    try:
        value = json.loads(text, parse_float=_number, parse_int=_number)
        return ormsgpack.packb(value)
    except (ValueError, RecursionError, ormsgpack.MsgpackEncodeError):
        return ormsgpack.packb(text.decode())


def _number(text: str) -> Any:
    """A JSON number as the value that holds it exactly.

    >>> [_number(text) for text in ("18446744073709551615", "18446744073709551616", "0.10")]
    [18446744073709551615, '18446744073709551616', 0.1]
    """
    if len(text) <= 20 and text.lstrip("-").isdigit():
        whole = int(text)
        return whole if -(1 << 63) <= whole < 1 << 64 else text
    number = float(text)
    if not math.isfinite(number):
        return text
    try:
        return number if Decimal(repr(number)) == Decimal(text) else text
    except InvalidOperation:
        return text
