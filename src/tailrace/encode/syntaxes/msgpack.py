"""MessagePack: cells with their headers, objects as joined pieces.

Every integer and every header has its shortest form, so the same change always has the same bytes,
whatever other changes are encoded with it. Headers have 1, 2, 3 or 5 bytes: numpy writes the
longest form into a row of bytes per value and drops the unused bytes with a mask
(`columns.ragged`). If all values of a column have the short form, one byte per value is written
directly.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.decode import columns
from tailrace.decode.typed import unhex
from tailrace.decode.types import Kind, Type
from tailrace.encode.pieces import Piece, Pieces, only
from tailrace.encode.syntaxes import arrays, hstore, jsonb, text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from tailrace.encode.syntaxes.syntax import Field


class MessagePack:
    """The MessagePack encoding."""

    null = b"\xc0"

    def constant(self, value: object) -> bytes:
        """A Python value."""
        return pack(value)

    def text(self, values: pa.BinaryArray) -> Pieces:
        """Strings: a column of headers, then the unchanged bytes."""
        return with_headers(values, string_headers)

    def plain(self, values: pa.BinaryArray) -> Pieces:
        """Strings."""
        return with_headers(values, string_headers)

    def integers(self, values: NDArray[np.integer]) -> Pieces:
        """Integers in their shortest form."""
        return (integers(values),)

    def document(self, values: pa.BinaryArray) -> Pieces:
        """JSON text, decoded."""
        return (jsonb.json_to_msgpack(values),)

    def cells(self, type_: Type, values: pa.BinaryArray, *, native: bool) -> Pieces:
        """PostgreSQL's text of values as MessagePack."""
        if native and type_.kind in _STRUCTURED:
            return self._structured(type_, values)
        if encode := _ENCODERS.get(type_.kind):
            return (encode(values),)
        if type_.kind is Kind.BYTEA:
            return with_headers(unhex(values), binary_headers)
        reformat = _STRING_FORMATS.get(type_.kind)
        return self.text(reformat(values) if reformat else values)

    def _structured(self, type_: Type, values: pa.BinaryArray) -> Pieces:
        match type_.kind:
            case Kind.ARRAY:
                return arrays.cells(type_, values, self)
            case Kind.HSTORE:
                return hstore.cells(values, self)
            case _:
                return arrays.vectors(values, self)

    def brackets(self, marks: arrays.Marks) -> pa.BinaryArray:
        """A header where an array opens, nothing elsewhere."""
        headers = array_headers(marks.counts())
        lengths = np.zeros(len(marks.opens), np.int64)
        lengths[marks.opens] = np.diff(columns.offsets(headers))
        return columns.column(columns.content(headers), columns.starts_of(lengths))

    def pair_marks(self, keys: NDArray[np.bool_], last: NDArray[np.bool_]) -> pa.BinaryArray:  # noqa: ARG002
        """Nothing: the header of a map has the number of its members."""
        return columns.column(np.empty(0, np.uint8), np.zeros(len(keys) + 1, np.int32))

    def mapping(self, members: pa.BinaryArray, counts: NDArray[np.integer]) -> Pieces:
        """A header with the number of members, then the members."""
        return _headers(counts, _MAP, columns.validity(members)), columns.dense(members)

    def object(self, fields: Sequence[Field]) -> Pieces:
        """Maps; the header has the number of members of each row."""
        always = sum(field.present is None for field in fields)
        masks = [field.present for field in fields if field.present is not None]
        counts = always + sum((mask.astype(np.int64) for mask in masks), np.int64(0))
        pieces: list[Piece] = [
            map_headers(counts) if isinstance(counts, np.ndarray) else map_header(always)
        ]
        for field in fields:
            lead = _name(field.name)
            if field.present is None:
                pieces += [lead, *field.value]
            else:
                pieces.append(only(field.present, [lead, *field.value], null=self.null))
        return tuple(pieces)


@lru_cache(maxsize=65536)
def _name(name: str) -> bytes:
    return pack(name)


def pack(value: Any) -> bytes:
    """A Python value: None, bool, int, str, lists and dicts of these.

    >>> pack({"a": [1, None, "é"]}).hex()
    '81a1619301c0a2c3a9'
    """
    match value:
        case None:
            return b"\xc0"
        case bool():
            return b"\xc3" if value else b"\xc2"
        case int():
            dtype = np.uint64 if value > 0x7FFF_FFFF_FFFF_FFFF else np.int64
            packed: bytes = integers(np.array([value], dtype))[0].as_py()
            return packed
        case str():
            data = value.encode()
            return _header(len(data), _STRING) + data
        case dict():
            return map_header(len(value)) + b"".join(
                pack(name) + pack(item) for name, item in value.items()
            )
        case _:
            return array_header(len(value)) + b"".join(map(pack, value))


_Form = tuple[int, int, int, int, int]

# The first byte of the short form and its limit, then the first bytes of the forms with a length of
# 1, 2 and 4 bytes (0: there is no such form).
_STRING = (0xA0, 32, 0xD9, 0xDA, 0xDB)
_BINARY = (0, 0, 0xC4, 0xC5, 0xC6)
_ARRAY = (0x90, 16, 0, 0xDC, 0xDD)
_MAP = (0x80, 16, 0, 0xDE, 0xDF)


def _header(length: int, form: _Form) -> bytes:
    short, few, one, two, four = form
    if length < few:
        return bytes([short | length])
    if one and length < 1 << 8:
        return struct.pack(">BB", one, length)
    if length < 1 << 16:
        return struct.pack(">BH", two, length)
    return struct.pack(">BI", four, length)


def map_header(length: int) -> bytes:
    """The header of a map."""
    return _header(length, _MAP)


def array_header(length: int) -> bytes:
    """The header of an array."""
    return _header(length, _ARRAY)


def _headers(lengths: NDArray[np.integer], form: _Form, nulls: pa.Buffer | None) -> pa.BinaryArray:
    """The header of each value in its shortest form; see the module for the method.

    >>> _headers(np.array([3, 40, 300]), _STRING, None).to_pylist()
    [b'\\xa3', b'\\xd9(', b'\\xda\\x01,']
    """
    short, few, one, two, four = form
    most = int(lengths.max(initial=0))
    if most < few:
        return columns.fixed((short | lengths).astype(np.uint8)[:, None], nulls)
    rows = np.empty((len(lengths), 5), np.uint8)
    rows[:, 1:] = lengths.astype(">u4")[:, None].view(np.uint8).reshape(-1, 4)
    keep = np.zeros(rows.shape, bool)
    fixed = lengths < few
    byte = ~fixed & (lengths < 1 << 8) if one else np.zeros_like(fixed)
    wide = ~fixed & ~byte & (lengths < 1 << 16)
    rows[:, 0] = np.select([fixed, byte, wide], [short | lengths, one, two], four)
    keep[:, 0] = True
    keep[:, 4] = ~fixed
    keep[:, 3] = ~fixed & ~byte
    keep[:, 1] = keep[:, 2] = keep[:, 3] & ~wide
    return columns.ragged(rows, keep, nulls)


def string_headers(lengths: NDArray[np.integer], nulls: pa.Buffer | None = None) -> pa.BinaryArray:
    """The headers of strings of these lengths."""
    return _headers(lengths, _STRING, nulls)


def binary_headers(lengths: NDArray[np.integer], nulls: pa.Buffer | None = None) -> pa.BinaryArray:
    """The headers of binary values of these lengths."""
    return _headers(lengths, _BINARY, nulls)


def map_headers(counts: NDArray[np.integer]) -> pa.BinaryArray:
    """The headers of maps with these numbers of members."""
    return _headers(counts, _MAP, None)


def array_headers(counts: NDArray[np.integer]) -> pa.BinaryArray:
    """The headers of arrays with these numbers of elements."""
    return _headers(counts, _ARRAY, None)


def with_headers(
    values: pa.BinaryArray,
    headers: Callable[[NDArray[np.integer], pa.Buffer | None], pa.BinaryArray],
) -> Pieces:
    """A column of headers, which also has the nulls, then the bytes."""
    lengths = np.diff(columns.offsets(values))
    return headers(lengths, columns.validity(values)), columns.dense(values)


def numbers(values: pa.BinaryArray, type_: pa.DataType) -> NDArray[Any]:
    """Parse numbers from text; nulls become zero."""
    parsed: NDArray[Any] = pc.cast(columns.as_text(values), type_).fill_null(0).to_numpy()
    return parsed


def floats(values: NDArray[np.float64], nulls: pa.Buffer | None = None) -> pa.BinaryArray:
    """64-bit floats."""
    rows = np.empty((len(values), 9), np.uint8)
    rows[:, 0] = 0xCB
    rows[:, 1:] = values.astype(">f8")[:, None].view(np.uint8)
    return columns.fixed(rows, nulls)


def integers(values: NDArray[np.integer], nulls: pa.Buffer | None = None) -> pa.BinaryArray:
    """Integers in their shortest form.

    Each integer is written as a tag and eight bytes, big endian; a mask keeps the tag and the bytes
    that its form needs. A small integer is its own tag.

    >>> integers(np.array([5, -1, 300])).to_pylist()
    [b'\\x05', b'\\xff', b'\\xcd\\x01,']
    """
    low, high = int(values.min(initial=0)), int(values.max(initial=0))
    if low >= -32 and high < 128:
        return columns.fixed(values.astype(np.int8).view(np.uint8)[:, None], nulls)
    rows = np.empty((len(values), 9), np.uint8)
    rows[:, 1:] = values.astype(">u8" if low >= 0 else ">i8")[:, None].view(np.uint8)
    width = np.zeros(len(values), np.uint8)
    code = rows[:, 8].copy()
    for size, limit, tag in ((1, 1 << 7, 0xCC), (2, 1 << 8, 0xCD), (4, 1 << 16, 0xCE),
                             (8, 1 << 32, 0xCF)):  # fmt: skip
        if high >= limit:
            wide = values >= limit
            width[wide], code[wide] = size, tag
    for size, limit, tag in ((1, -32, 0xD0), (2, -(1 << 7), 0xD1), (4, -(1 << 15), 0xD2),
                             (8, -(1 << 31), 0xD3)):  # fmt: skip
        if low < limit:
            wide = values < limit
            width[wide], code[wide] = size, tag
    rows[:, 0] = code
    keep = np.empty(rows.shape, bool)
    keep[:, 0] = True
    for place in range(1, 9):
        keep[:, place] = width > 8 - place
    return columns.ragged(rows, keep, nulls)


def _bools(values: pa.BinaryArray) -> pa.BinaryArray:
    true = pc.equal(values, columns.constant(b"t")).fill_null(False).to_numpy(zero_copy_only=False)
    return columns.fixed(
        np.where(true, 0xC3, 0xC2).astype(np.uint8)[:, None], columns.validity(values)
    )


def _integer_cells(values: pa.BinaryArray) -> pa.BinaryArray:
    return integers(numbers(values, pa.int64()), columns.validity(values))


def _float_cells(values: pa.BinaryArray) -> pa.BinaryArray:
    return floats(numbers(values, pa.float64()), columns.validity(values))


_STRUCTURED = frozenset({Kind.ARRAY, Kind.HSTORE, Kind.VECTOR})
_ENCODERS = {
    Kind.BOOL: _bools,
    Kind.INT2: _integer_cells,
    Kind.INT4: _integer_cells,
    Kind.INT8: _integer_cells,
    Kind.OID: _integer_cells,
    Kind.FLOAT4: _float_cells,
    Kind.FLOAT8: _float_cells,
    Kind.JSON: jsonb.json_to_msgpack,
    Kind.JSONB: jsonb.jsonb_to_msgpack,
}
_STRING_FORMATS = {Kind.TIMESTAMP: text.iso_timestamps, Kind.TIMESTAMPTZ: text.iso_instants}
