"""Avro's binary encoding, for whole columns at once.

Avro writes neither names nor types: a record is the concatenation of its members, a union is the
number of its branch and then the value. `null` is the first branch of every union here, so a NULL
is one zero byte. Integers are zigzag varints of seven bits per byte; most of this module is about
writing those with numpy.

Few values have no representation in their Avro type (`infinity`, NaN, very distant years). Only
those rows are encoded one by one (`_patched`).
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
"""The precision of a 128-bit decimal."""
_DAY_US = 86_400_000_000
_STAMP = re.compile(r"(\d+)-(\d\d)-(\d\d)(?: (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?)?(?:\+00)?( BC)?")
_INFINITE = {b"infinity": 0, b"-infinity": 1}


class Avro:
    """The encoding of the fields that every message has, for any table."""

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
    encoded: bytes = longs(np.array([value], np.int64))[0].as_py()
    return encoded


def string(value: bytes) -> bytes:
    """One string, or bytes."""
    return long(len(value)) + value


def longs(
    values: NDArray[np.integer], nulls: pa.Buffer | None = None, lead: bytes = b""
) -> pa.BinaryArray:
    """Zigzag varints, each preceded by the bytes `lead` (the branch of a union).

    Zigzag maps 0, -1, 1, -2 to 0, 1, 2, 3. Each number is written as a row of as many 7-bit digits
    as the largest needs, lowest first, with the high bit set; a mask drops the leading zeros, and
    the last digit that remains loses its high bit.

    >>> longs(np.array([1, -65, 300]), lead=b"\\x02").to_pylist()
    [b'\\x02\\x02', b'\\x02\\x81\\x01', b'\\x02\\xd8\\x04']
    """
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
    """Strings or bytes: a column of lengths, which also has the nulls, then the bytes."""
    lengths = np.diff(columns.offsets(values))
    return longs(lengths, columns.validity(values), lead), columns.dense(values)


def cells(field: creek.Field, values: pa.BinaryArray) -> Pieces:
    """Values from PostgreSQL's text as a member of a record. Nulls are the union's null branch."""
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
    true = pc.equal(values, columns.constant(b"t")).fill_null(False).to_numpy(zero_copy_only=False)
    return _with_lead(true.astype(np.uint8)[:, None], values, lead)


def _integers(values: pa.BinaryArray, lead: bytes) -> pa.BinaryArray:
    return longs(numbers(values, pa.int64()), columns.validity(values), lead)


def _floats(values: pa.BinaryArray, lead: bytes) -> pa.BinaryArray:
    parsed = numbers(values, pa.float32()).astype("<f4")
    return _with_lead(parsed[:, None].view(np.uint8), values, lead)


def _doubles(values: pa.BinaryArray, lead: bytes) -> pa.BinaryArray:
    parsed = numbers(values, pa.float64()).astype("<f8")
    return _with_lead(parsed[:, None].view(np.uint8), values, lead)


def _with_lead(data: NDArray[np.uint8], values: pa.BinaryArray, lead: bytes) -> pa.BinaryArray:
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
    """The encoded column, with the rows in `odd` encoded one by one from their text."""
    if not odd.any():
        return encoded
    mask = pa.array(odd)
    replacements = [one(text) for text in values.filter(mask).to_pylist()]
    return pc.replace_with_mask(encoded, mask, pa.array(replacements, pa.binary()))


def _endless(field: creek.Field, values: pa.BinaryArray, lead: bytes, first: int) -> pa.BinaryArray:
    """Dates and times: a number, infinity, or the text of a time that 64 bits cannot hold."""
    kind = field.type.kind
    since_1970, fit = _NUMBERS[kind](values)
    odd = ~fit & columns.valid(values)

    def one(text: bytes) -> bytes:
        if (endless := _INFINITE.get(text)) is not None:
            return _branch(first + 1) + long(endless)
        number = days(text) if kind is Kind.DATE else micros(text)
        if number is None:
            return _branch(first + 2) + string(text)
        return lead + long(number)

    return _patched(longs(since_1970, columns.validity(values), lead), values, odd, one)


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
    micros: NDArray[np.int64] = typed.view(pa.int64()).fill_null(0).to_numpy()
    return micros


def _times(values: pa.BinaryArray) -> Numbers:
    """Microseconds of `12:34:56.789`, computed from the digits: no library accepts `24:00:00`.

    The digits of HH:MM:SS are at fixed places; up to six digits of the fraction follow.
    """
    present = columns.valid(values)
    starts, data = columns.offsets(values), columns.content(values)
    lengths = np.diff(starts)[present]
    begins = starts[:-1][present].astype(np.int64)
    padded = np.append(data, np.zeros(16, np.uint8)).astype(np.int64) - ord("0")
    micros_of_day = np.zeros(len(values), np.int64)
    total = np.zeros(len(begins), np.int64)
    for place, scale in ((0, 36_000), (1, 3600), (3, 600), (4, 60), (6, 10), (7, 1)):
        total += padded[begins + place] * (scale * 1_000_000)
    for place in range(9, 15):
        digit = np.where(lengths > place, padded[begins + place], 0)
        total += digit * 10 ** (14 - place)
    micros_of_day[present] = total
    return micros_of_day, present


_NUMBERS: dict[Kind, Callable[[pa.BinaryArray], Numbers]] = {
    Kind.DATE: _dates,
    Kind.TIME: _times,
    Kind.TIMESTAMP: _timestamps,
    Kind.TIMESTAMPTZ: _instants,
}


def days(text: bytes) -> int | None:
    """Days since 1970 of any date that PostgreSQL supports.

    >>> days(b"1970-01-02"), days(b"0001-01-01 BC"), days(b"5874897-12-31")
    (1, -719528, 2145042905)
    """
    match = _STAMP.fullmatch(text.decode("ascii", "replace"))
    if match is None:
        return None
    year, month, day = int(match[1]), int(match[2]), int(match[3])
    year = 1 - year if match[8] else year
    # Count years from March, so that the leap day is the last day; 400 years are one era.
    year -= month <= 2
    era, of_era = divmod(year, 400)
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


def micros(text: bytes) -> int | None:
    """Microseconds since 1970 of a timestamp in UTC; None if 64 bits cannot hold them.

    >>> micros(b"1970-01-01 00:00:01.5"), micros(b"294276-12-31 23:59:59.999999")
    (1500000, None)
    """
    match, day = _STAMP.fullmatch(text.decode("ascii", "replace")), days(text)
    if match is None or day is None or match[4] is None:
        return None
    seconds = int(match[4]) * 3600 + int(match[5]) * 60 + int(match[6])
    total = day * _DAY_US + seconds * 1_000_000 + int((match[7] or "").ljust(6, "0"))
    return total if -(1 << 63) <= total < 1 << 63 else None


def _decimals(type_: Type, values: pa.BinaryArray, lead: bytes, text: bytes) -> Pieces:
    """The unscaled integer in the fewest big-endian bytes; NaN and infinity as text.

    `-1.28` of numeric(5,2) is -128, one byte: `\\x80`.
    """
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
    encoded = strings(_shortest(typed), lead)
    if not odd.any():
        return encoded
    return (_patched(join(encoded, null=NULL), values, odd, one),)


def _shortest(values: pa.Decimal128Array) -> pa.BinaryArray:
    """Two's complement, big endian, without leading bytes that only repeat the sign.

    The first byte that differs from the sign is kept, and one byte before it if its top bit would
    change the sign.

    >>> from decimal import Decimal
    >>> numbers = [Decimal(1), Decimal(200), Decimal(-200)]
    >>> _shortest(pa.array(numbers, pa.decimal128(38))).to_pylist()
    [b'\\x01', b'\\x00\\xc8', b'\\xff8']
    """
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
    keep[~columns.valid(values)] = False
    return columns.ragged(rows, keep, columns.validity(values))


def _arrays(type_: Type, values: pa.BinaryArray, lead: bytes, text: bytes) -> Pieces:
    """Arrays of one dimension without NULLs; other arrays as text.

    An Avro array is blocks of a count and so many elements, and a zero at the end: `{7,8}` of int
    is `\\x04` (2 elements), `\\x0e` `\\x10` (7, 8), `\\x00`.
    """
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
    encoded_arrays = join([lead, sizes, blocks, NULL])
    if plain.all():
        return (encoded_arrays,)
    rest = join(strings(columns.blanked(values, ~plain), text), null=NULL)
    return (pc.replace_with_mask(rest, chosen, encoded_arrays),)


def _plain_arrays(values: pa.BinaryArray, delimiter: str) -> NDArray[np.bool_]:
    """Which values are arrays of one dimension, with default bounds and without NULLs."""
    starts = columns.offsets(values)
    plain = np.diff(starts) > 0
    plain[plain] = columns.content(values)[starts[:-1][plain]] == ord("{")
    if not plain.any():
        return plain
    marks = arrays.parse(values.filter(pa.array(plain)), b"{}", delimiter)
    if not marks.balanced:
        return np.zeros(len(values), bool)
    opened = np.diff(columns.starts_of(marks.opens)[marks.rows])
    members = columns.starts_of(marks.follows)[marks.rows]
    nulls = np.diff(columns.starts_of(~columns.valid(marks.elements))[members])
    plain[plain] = (opened == 1) & (nulls == 0)
    return plain
