"""Avro's binary form, whole columns at a time.

Avro writes no names and no types: a record is its members one after another, a union is the number
of its branch and then the value. `null` is the first branch of every union here, so a null in a
column is one zero byte. Integers are varints of seven bits a byte, zigzag, which is what most of
this is about.

Values that their Avro type cannot hold are few; those, and only those, are looked at one by one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.decode import columns
from tailrace.decode.typed import any_letter, four_digit_years
from tailrace.decode.types import Kind
from tailrace.encode.creek import schema as creek
from tailrace.encode.pieces import Pieces, join
from tailrace.encode.syntaxes import arrays
from tailrace.encode.syntaxes.msgpack import numbers

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tailrace.decode.types import Type

    Numbers = tuple[NDArray[np.int64], NDArray[np.bool_]]

NULL: Final = b"\0"
_DIGITS = 38
"""What a decimal of 128 bits holds."""
_DAY_US = 86_400_000_000
_STAMP = re.compile(r"(\d+)-(\d\d)-(\d\d)(?: (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?)?(?:\+00)?( BC)?")
_INFINITE = {b"infinity": 0, b"-infinity": 1}


class Avro:
    """The values that stand in every message, whatever table it is of."""

    null = NULL

    def constant(self, value: object) -> bytes:
        """A number or a string."""
        return long(value) if isinstance(value, int) else string(str(value).encode())

    def text(self, values: pa.BinaryArray) -> Pieces:
        """Strings."""
        return strings(values)

    def plain(self, values: pa.BinaryArray) -> Pieces:
        """Strings."""
        return strings(values)

    def integers(self, values: NDArray[np.integer]) -> Pieces:
        """Longs."""
        return (longs(values),)


def long(value: int) -> bytes:
    """One number.

    >>> long(0), long(-1), long(64), long(1 << 62).hex()
    (b'\\x00', b'\\x01', b'\\x80\\x01', '80808080808080808001')
    """
    found: bytes = longs(np.array([value], np.int64))[0].as_py()
    return found


def string(value: bytes) -> bytes:
    """One string, or bytes."""
    return long(len(value)) + value


def longs(
    values: NDArray[np.integer], nulls: pa.Buffer | None = None, lead: bytes = b""
) -> pa.BinaryArray:
    """Numbers, with a byte before each or none."""
    signed = values.astype(np.int64)
    zigzag = ((signed << 1) ^ (signed >> 63)).view(np.uint64)
    most = int(zigzag.max(initial=0))
    width = max((most.bit_length() + 6) // 7, 1)
    rows = np.empty((len(values), len(lead) + width), np.uint8)
    rows[:, : len(lead)] = np.frombuffer(lead, np.uint8)
    digits = rows[:, len(lead) :]
    if width == 1:
        digits[:, 0] = zigzag
        return columns.fixed(rows, nulls)
    keep = np.ones(rows.shape, bool)
    for place in range(width):
        digits[:, place] = (zigzag >> np.uint64(7 * place)).astype(np.uint8) | 0x80
        if place:
            keep[:, len(lead) + place] = zigzag >= np.uint64(1 << 7 * place)
    last = np.count_nonzero(keep, axis=1) - 1
    rows[np.arange(len(rows)), last] &= 0x7F
    return columns.ragged(rows, keep, nulls)


def strings(values: pa.BinaryArray, lead: bytes = b"") -> Pieces:
    """Strings or bytes: a length column that knows the nulls, then the bytes as they are."""
    lengths = np.diff(columns.offsets(values))
    return longs(lengths, columns.validity(values), lead), columns.dense(values)


def cells(field: creek.Field, values: pa.BinaryArray) -> Pieces:
    """PostgreSQL's text of values as a member of a record. Nulls in a union are its null."""
    first = int(field.nullable)
    lead = _branch(first) if field.branches > 1 else b""
    if not field.native:
        return strings(values, lead)
    if field.endless:
        return (_endless(field, values, lead, first),)
    match field.type.kind:
        case Kind.UUID | Kind.JSON | Kind.JSONB:
            return strings(values, lead)
        case Kind.NUMERIC:
            return _decimals(field.type, values, lead, _branch(first + 1))
        case Kind.ARRAY:
            return _arrays(field.type, values, lead, _branch(first + 1))
        case kind:
            return (_FIXED[kind](values, lead),)


def _branch(number: int) -> bytes:
    return bytes([2 * number])


def _bools(values: pa.BinaryArray, lead: bytes) -> pa.BinaryArray:
    true = pc.equal(values, b"t").fill_null(False).to_numpy(zero_copy_only=False)
    return _led(true.astype(np.uint8)[:, None], values, lead)


def _integers(values: pa.BinaryArray, lead: bytes) -> pa.BinaryArray:
    return longs(numbers(values, pa.int64()), columns.validity(values), lead)


def _floats(values: pa.BinaryArray, lead: bytes) -> pa.BinaryArray:
    found = numbers(values, pa.float32()).astype("<f4")
    return _led(found[:, None].view(np.uint8), values, lead)


def _doubles(values: pa.BinaryArray, lead: bytes) -> pa.BinaryArray:
    found = numbers(values, pa.float64()).astype("<f8")
    return _led(found[:, None].view(np.uint8), values, lead)


def _led(data: NDArray[np.uint8], values: pa.BinaryArray, lead: bytes) -> pa.BinaryArray:
    before = np.broadcast_to(np.frombuffer(lead, np.uint8), (len(data), len(lead)))
    return columns.fixed(np.hstack([before, data]), columns.validity(values))


_FIXED = {
    Kind.BOOL: _bools,
    Kind.INT2: _integers,
    Kind.INT4: _integers,
    Kind.INT8: _integers,
    Kind.FLOAT4: _floats,
    Kind.FLOAT8: _doubles,
}


def _patched(
    encoded: pa.BinaryArray,
    values: pa.BinaryArray,
    odd: NDArray[np.bool_],
    one: Callable[[bytes], bytes],
) -> pa.BinaryArray:
    """The encoded column, with the odd rows made one by one from their text."""
    if not odd.any():
        return encoded
    mask = pa.array(odd)
    made = [one(text) for text in values.filter(mask).to_pylist()]
    return pc.replace_with_mask(encoded, mask, pa.array(made, pa.binary()))


def _endless(field: creek.Field, values: pa.BinaryArray, lead: bytes, first: int) -> pa.BinaryArray:
    """Dates and times: a number, infinity, or the text of a time too far away for the number."""
    kind = field.type.kind
    found, fit = _NUMBERS[kind](values)
    odd = ~fit & columns.valid(values)

    def one(text: bytes) -> bytes:
        if (endless := _INFINITE.get(text)) is not None:
            return _branch(first + 1) + long(endless)
        number = days(text) if kind is Kind.DATE else micros(text)
        if number is None:
            return _branch(first + 2) + string(text)
        return lead + long(number)

    return _patched(longs(found, columns.validity(values), lead), values, odd, one)


def _dates(values: pa.BinaryArray) -> Numbers:
    fit: NDArray[np.bool_] = np.diff(columns.offsets(values)) == len("0001-01-01")
    typed = pc.cast(columns.as_text(_only(values, fit)), pa.date32())
    return typed.view(pa.int32()).fill_null(0).to_numpy().astype(np.int64), fit


def _timestamps(values: pa.BinaryArray) -> Numbers:
    fit = four_digit_years(values, len("0001-01-01 00:00:00"))
    return _micros_of(_only(values, fit), pa.timestamp("us")), fit


def _instants(values: pa.BinaryArray) -> Numbers:
    fit = four_digit_years(values, len("0001-01-01 00:00:00+00"))
    return _micros_of(_only(values, fit), pa.timestamp("us", tz="UTC")), fit


def _only(values: pa.BinaryArray, fit: NDArray[np.bool_]) -> pa.BinaryArray:
    return values if fit.all() else columns.blanked(values, fit)


def _micros_of(values: pa.BinaryArray, target: pa.DataType) -> NDArray[np.int64]:
    typed = pc.cast(columns.as_text(values), target)
    found: NDArray[np.int64] = typed.view(pa.int64()).fill_null(0).to_numpy()
    return found


def _times(values: pa.BinaryArray) -> Numbers:
    """`12:34:56.789`, and `24:00:00`, which no library takes: from the digits themselves."""
    given = columns.valid(values)
    starts, data = columns.offsets(values), columns.content(values)
    lengths = np.diff(starts)[given]
    begins = starts[:-1][given].astype(np.int64)
    padded = np.append(data, np.zeros(16, np.uint8)).astype(np.int64) - ord("0")
    found = np.zeros(len(values), np.int64)
    total = np.zeros(len(begins), np.int64)
    for place, scale in ((0, 36_000), (1, 3600), (3, 600), (4, 60), (6, 10), (7, 1)):
        total += padded[begins + place] * (scale * 1_000_000)
    for place in range(9, 15):
        digit = np.where(lengths > place, padded[begins + place], 0)
        total += digit * 10 ** (14 - place)
    found[given] = total
    return found, given


_NUMBERS: dict[Kind, Callable[[pa.BinaryArray], Numbers]] = {
    Kind.DATE: _dates,
    Kind.TIME: _times,
    Kind.TIMESTAMP: _timestamps,
    Kind.TIMESTAMPTZ: _instants,
}


def days(text: bytes) -> int | None:
    """Days since 1970 of any date PostgreSQL has.

    >>> days(b"1970-01-02"), days(b"0001-01-01 BC"), days(b"5874897-12-31")
    (1, -719528, 2145042905)
    """
    found = _STAMP.fullmatch(text.decode("ascii", "replace"))
    if found is None:
        return None
    year, month, day = int(found[1]), int(found[2]), int(found[3])
    year = 1 - year if found[8] else year
    # Years that begin in March have their leap day at the end, eras have 400 of them.
    year -= month <= 2
    era, of_era = divmod(year, 400)
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


def micros(text: bytes) -> int | None:
    """Microseconds since 1970 of a timestamp in UTC; None if 64 bits are too few.

    >>> micros(b"1970-01-01 00:00:01.5"), micros(b"294276-12-31 23:59:59.999999")
    (1500000, None)
    """
    found, day = _STAMP.fullmatch(text.decode("ascii", "replace")), days(text)
    if found is None or day is None or found[4] is None:
        return None
    seconds = int(found[4]) * 3600 + int(found[5]) * 60 + int(found[6])
    total = day * _DAY_US + seconds * 1_000_000 + int((found[7] or "").ljust(6, "0"))
    return total if -(1 << 63) <= total < 1 << 63 else None


def _decimals(type_: Type, values: pa.BinaryArray, lead: bytes, text: bytes) -> Pieces:
    """The digits as a whole number, big endian, no longer than needed; NaN and infinity as text."""
    assert type_.precision is not None
    scale, odd = type_.scale, any_letter(values)
    if type_.precision > _DIGITS:
        odd = columns.valid(values)

    def one(value: bytes) -> bytes:
        if not value[-1:].isdigit():
            return text + string(value)
        number = int(value.replace(b".", b""))
        return lead + string(number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True))

    typed = pc.cast(columns.as_text(_only(values, ~odd)), pa.decimal128(_DIGITS, scale))
    found = strings(_shortest(typed), lead)
    if not odd.any():
        return found
    return (_patched(join(found, null=NULL), values, odd, one),)


def _shortest(values: pa.Decimal128Array) -> pa.BinaryArray:
    """Two's complement without bytes that only repeat the sign."""
    count = len(values)
    if not count:
        return pa.array([], pa.binary())
    raw = np.frombuffer(values.buffers()[1], np.uint8, count * 16, values.offset * 16)
    rows = raw.reshape(count, 16)[:, ::-1]
    sign = np.where(rows[:, 0] & 0x80, 0xFF, 0).astype(np.uint8)
    differs = rows != sign[:, None]
    first = np.where(differs.any(axis=1), differs.argmax(axis=1), 15)
    top = rows[np.arange(count), first] & 0x80
    first -= ((top ^ sign) & 0x80 != 0).astype(first.dtype)
    keep = np.arange(16) >= first[:, None]
    given = columns.valid(values)
    keep[~given] = False
    return columns.ragged(rows, keep, columns.validity(values))


def _arrays(type_: Type, values: pa.BinaryArray, lead: bytes, text: bytes) -> Pieces:
    """Arrays of one dimension without NULLs; others as text."""
    assert type_.element is not None
    plain = _plain_arrays(values, type_.element.delimiter)
    if not plain.any():
        return strings(values, text)
    chosen = pa.array(plain)
    marks = arrays.parse(values.filter(chosen), b"{}", type_.element.delimiter)
    element = creek.Field(type=type_.element, nullable=False)
    encoded = join([*cells(element, marks.elements), b""], null=NULL)
    counts = np.diff(columns.starts_of(marks.follows)[marks.rows])
    bounds = columns.offsets(encoded)[columns.starts_of(counts)]
    blocks = columns.column(columns.content(encoded), bounds)
    headers = longs(counts)
    sizes = pc.if_else(pa.array(counts > 0), headers, pa.scalar(b"", pa.binary()))
    made = join([lead, sizes, blocks, NULL])
    if plain.all():
        return (made,)
    rest = join(strings(columns.blanked(values, ~plain), text), null=NULL)
    return (pc.replace_with_mask(rest, chosen, made),)


def _plain_arrays(values: pa.BinaryArray, delimiter: str) -> NDArray[np.bool_]:
    """Which values are arrays of one dimension, with the usual bounds and without NULLs."""
    starts = columns.offsets(values)
    found = np.diff(starts) > 0
    found[found] = columns.content(values)[starts[:-1][found]] == ord("{")
    if not found.any():
        return found
    marks = arrays.parse(values.filter(pa.array(found)), b"{}", delimiter)
    if not marks.balanced:
        return np.zeros(len(values), bool)
    opened = np.diff(columns.starts_of(marks.opens)[marks.rows])
    members = columns.starts_of(marks.follows)[marks.rows]
    nulls = np.diff(columns.starts_of(~columns.valid(marks.elements))[members])
    found[found] = (opened == 1) & (nulls == 0)
    return found
