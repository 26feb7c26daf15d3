"""PostgreSQL's text to typed Arrow columns, for frames.

Values that the Arrow type cannot hold are masked before the cast: infinity, dates before year 1 or
after 9999, NaN as a decimal. Such a value becomes null *and* is reported, so that it differs from
an SQL NULL. Types without an Arrow equivalent, arrays among them, stay text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.decode import columns
from tailrace.decode.types import Kind, Type
from tailrace.errors import MalformedError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PRECISION: Final = 38
"""Digits a decimal of 128 bits can hold; Spark's limit too."""

_ARROW = {
    Kind.BOOL: pa.bool_(),
    Kind.INT2: pa.int16(),
    Kind.INT4: pa.int32(),
    Kind.INT8: pa.int64(),
    Kind.OID: pa.int64(),
    Kind.FLOAT4: pa.float32(),
    Kind.FLOAT8: pa.float64(),
    Kind.DATE: pa.date32(),
    Kind.TIMESTAMP: pa.timestamp("us"),
    Kind.TIMESTAMPTZ: pa.timestamp("us", tz="UTC"),
    Kind.BYTEA: pa.binary(),
}

_NIBBLES = np.full(256, 16, np.uint8)
_NIBBLES[np.frombuffer(b"0123456789", np.uint8)] = np.arange(10)
_NIBBLES[np.frombuffer(b"abcdef", np.uint8)] = np.arange(10, 16)


def arrow_type(type_: Type) -> pa.DataType:
    """The Arrow type of a column.

    >>> arrow_type(Type(kind=Kind.NUMERIC, precision=3, scale=-2))
    Decimal128Type(decimal128(5, 0))
    """
    if type_.kind is Kind.NUMERIC and type_.precision is not None:
        scale = max(type_.scale, 0)
        digits = max(type_.precision - type_.scale, 0) + scale
        if digits <= _PRECISION:
            return pa.decimal128(digits, scale)
    return _ARROW.get(type_.kind, pa.string())


def to_arrow(values: pa.BinaryArray, type_: Type) -> tuple[pa.Array, NDArray[np.bool_]]:
    """A typed column, and a mask of the values it could not hold, which are null in it."""
    target = arrow_type(type_)
    values = columns.tidy(values)
    if type_.kind is Kind.BYTEA:
        return unhex(values), np.zeros(len(values), bool)
    if type_.kind is Kind.BOOL:
        return pc.equal(values, columns.constant(b"t")), np.zeros(len(values), bool)
    fit = _representable(values, target)
    refused = ~fit & columns.valid(values)
    if refused.any():
        values = columns.blanked(values, fit)
    text = columns.as_text(values)
    return text if target == pa.string() else pc.cast(text, target), refused


def _representable(values: pa.BinaryArray, target: pa.DataType) -> NDArray[np.bool_]:
    if target == pa.string():
        return columns.utf8_mask(values)
    if pa.types.is_timestamp(target):
        return four_digit_years(values, 19)
    if pa.types.is_date(target):
        long: NDArray[np.bool_] = np.diff(columns.offsets(values)) == len("0001-01-01")
        return long
    if pa.types.is_decimal(target):
        return ~any_letter(values)
    return np.ones(len(values), bool)


def any_letter(values: pa.BinaryArray) -> NDArray[np.bool_]:
    """Which numerics are words: NaN, Infinity."""
    words = np.zeros(len(values), bool)
    letters = np.flatnonzero(columns.content(values) >= ord("A"))
    words[columns.rows_of(letters, columns.offsets(values))] = True
    return words


def four_digit_years(values: pa.BinaryArray, shortest: int) -> NDArray[np.bool_]:
    """Which timestamps are of the years 1 to 9999: a space after ten bytes, no BC at the end.

    2026-01-31 12:00:00 passes; 12026-01-31 12:00:00, 0044-03-15 12:00:00 BC and infinity do not.
    """
    starts, data = columns.offsets(values), columns.content(values)
    long: NDArray[np.bool_] = np.diff(starts) >= shortest
    if not len(data):
        return long
    tenth = np.minimum(starts[:-1] + 10, len(data) - 1)
    fit: NDArray[np.bool_] = long & (data[tenth] == ord(" ")) & (data[starts[1:] - 1] != ord("C"))
    return fit


def unhex(values: pa.BinaryArray) -> pa.BinaryArray:
    r"""The bytes of values in hexadecimal form, `\x…`; sessions are pinned to that form.

    All values are decoded as one array, so text in another form would shift every value after it.
    It is refused.
    """
    starts, data = columns.offsets(values), columns.content(values)
    lengths = np.diff(starts)
    present = columns.valid(values)
    begins = starts[:-1][present]
    digits = np.ones(len(data), bool)
    if (lengths[present] < 2).any() or (lengths % 2).any():
        raise _not_hexadecimal()
    if (data[begins] != ord("\\")).any() or (data[begins + 1] != ord("x")).any():
        raise _not_hexadecimal()
    digits[begins] = digits[begins + 1] = False
    nibbles = _NIBBLES[data[digits]]
    if (nibbles > 15).any():
        raise _not_hexadecimal()
    octets: NDArray[np.uint8] = nibbles[0::2] * np.uint8(16) + nibbles[1::2]
    halves = np.maximum(lengths - 2, 0) // 2
    return columns.column(octets, columns.starts_of(halves), columns.validity(values))


def _not_hexadecimal() -> MalformedError:
    return MalformedError(
        "a bytea value is not in hexadecimal form",
        hint="Set bytea_output to hex in the session that wrote this text.",
    )
