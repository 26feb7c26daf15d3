"""JSON text → MessagePack: the only type that is decoded value by value.

The JSON decoder is called once per 128 cells, the MessagePack encoder once per cell. Numbers keep
their exact value:

| JSON number                            | MessagePack                    |
|----------------------------------------|--------------------------------|
| an integer that fits 64 bits           | integer                        |
| a number that a double prints the same | float: `0.10` → 0.1            |
| any other                              | string: `0.1000000000000000055`|

The fast decoder (orjson) reads every number as a double. `_awkward` finds the few rows with numbers
that a double may not hold, and only those are decoded again, number by number.
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
    from numpy.typing import NDArray

# A double reproduces every number of up to 15 digits; a decimal point may be among them.
_LONG = 16
_FULL = np.uint64(0x0101_0101_0101_0101)
_EXPONENT = np.zeros(256, bool)
_EXPONENT[np.frombuffer(b"0123456789+-", np.uint8)] = True
# Documents per decoder call: enough to save calls, few enough to stay in the CPU cache.
_DOCUMENTS_PER_CALL = 128


def json_to_msgpack(values: pa.BinaryArray) -> pa.BinaryArray:
    """The MessagePack of each JSON text; nulls stay null.

    >>> json_to_msgpack(pa.array([b'{"a":1}', None], pa.binary())).to_pylist()
    [b'\\x81\\xa1a\\x01', None]
    """
    return _to_msgpack(values, exponents=True)


def jsonb_to_msgpack(values: pa.BinaryArray) -> pa.BinaryArray:
    """The MessagePack of jsonb, which PostgreSQL prints without exponents."""
    return _to_msgpack(values, exponents=False)


def _to_msgpack(values: pa.BinaryArray, *, exponents: bool) -> pa.BinaryArray:
    documents = values.drop_null() if values.null_count else values
    if not len(documents):
        return pa.nulls(len(values), pa.binary())
    packed = _packed(documents, exponents)
    lengths = np.zeros(len(values), np.int64)
    lengths[columns.valid(values)] = np.fromiter(map(len, packed), np.int64, len(packed))
    data = np.frombuffer(b"".join(packed), np.uint8)
    return columns.column(data, columns.starts_of(lengths), columns.validity(values))


def _packed(values: pa.BinaryArray, exponents: bool) -> list[bytes]:
    listed = join([values, b","])
    starts = columns.offsets(listed)
    body = columns.content(listed).tobytes()
    packed: list[bytes] = []
    for first in range(0, len(values), _DOCUMENTS_PER_CALL):
        last = min(first + _DOCUMENTS_PER_CALL, len(values))
        try:
            documents = orjson.loads(b"[" + body[starts[first] : starts[last] - 1] + b"]")
            packed += map(ormsgpack.packb, documents)
        except (orjson.JSONDecodeError, ormsgpack.MsgpackEncodeError):
            packed[first:] = [_pack_exactly(text.as_py()) for text in values[first:last]]
    for row in _awkward(listed, exponents).tolist():
        packed[row] = _pack_exactly(values[row].as_py())
    return packed


def _awkward(values: pa.BinaryArray, exponents: bool) -> NDArray[np.int64]:
    """Rows with a number that a double may not hold: more than 15 digits, or an exponent.

    Each value ends with a comma, so a run of digits never spans two values. Digits inside strings
    count too: such rows are decoded the slow way, with the same result.
    """
    data = columns.content(values)
    numeral = data - np.uint8(ord(".")) < 12  # the point, a slash and the digits
    places = np.empty(0, np.int64)
    if _any_long(numeral):
        other = np.flatnonzero(~numeral)
        places = other[np.diff(other, prepend=-1) > _LONG] - 1
    if exponents:
        letters = np.flatnonzero(((data[1:-1] | 0x20) == ord("e")) & numeral[:-2]) + 1
        places = np.append(places, letters[_EXPONENT[data[letters + 1]]])
    return np.unique(columns.rows_of(places, columns.offsets(values)))


def _any_long(numeral: NDArray[np.bool_]) -> bool:
    """Whether there can be a run of 16 digits: it would fill an aligned word of 8 bytes.

    This test is fast and rules out almost every column, so the positions are rarely computed.
    """
    words = numeral[: len(numeral) // 8 * 8].view(np.uint64)
    return bool((words == _FULL).any())


def _pack_exactly(text: bytes) -> bytes:
    """One document, number by number; a document that no decoder accepts stays text."""
    try:
        value = json.loads(text, parse_float=_number, parse_int=_number)
        return ormsgpack.packb(value)
    except (ValueError, RecursionError, ormsgpack.MsgpackEncodeError):
        return ormsgpack.packb(text.decode())


def _number(text: str) -> Any:
    """A JSON number as the Python value that represents it exactly.

    >>> [_number(text) for text in ("18446744073709551615", "18446744073709551616", "0.10")]
    [18446744073709551615, '18446744073709551616', 0.1]
    """
    if len(text) <= 20 and text.lstrip("-").isdigit():
        whole = int(text)
        if -(1 << 63) <= whole < 1 << 64:
            return whole
    number = float(text)
    if not math.isfinite(number):
        return text
    try:
        return number if Decimal(repr(number)) == Decimal(text) else text
    except InvalidOperation:
        return text
