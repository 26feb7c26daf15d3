"""JSON: cells as JSON text, objects as joined pieces.

Text of most types is JSON already or needs quotes only; strings are escaped in the rows that need
it (`text.escaped`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.decode import columns
from tailrace.decode.types import Kind, Type
from tailrace.encode.pieces import Piece, Pieces, only, where
from tailrace.encode.syntaxes import arrays, binary, digits, hstore, text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tailrace.encode.syntaxes.syntax import Field


class Json:
    """The JSON encoding."""

    null = b"null"

    def constant(self, value: object) -> bytes:
        """A Python value."""
        return orjson.dumps(value)

    def text(self, values: pa.BinaryArray) -> Pieces:
        """Strings."""
        return self.plain(text.escaped(values))

    def plain(self, values: pa.BinaryArray) -> Pieces:
        """Strings that need no escaping.

        Without nulls the quotes are constants, which `pieces.join` merges with their neighbours.
        """
        if not values.null_count:
            return (b'"', values, b'"')
        return (quoted(values),)

    def integers(self, values: NDArray[np.integer]) -> Pieces:
        """Decimal digits."""
        return (digits.decimal(values),)

    def document(self, values: pa.BinaryArray) -> Pieces:
        """JSON text is written unchanged."""
        return (values,)

    def cells(self, type_: Type, values: pa.BinaryArray, *, native: bool) -> Pieces:
        """PostgreSQL's text of values as JSON."""
        if native and type_.kind in _STRUCTURED:
            return self._structured(type_, values)
        if type_.kind in _UNCHANGED:
            return (values,)
        if encode := _ENCODERS.get(type_.kind):
            return (encode(values),)
        if encode := _STRING_ENCODERS.get(type_.kind):
            return self.plain(encode(values))
        return self.plain(values) if type_.kind in _PLAIN else self.text(values)

    def _structured(self, type_: Type, values: pa.BinaryArray) -> Pieces:
        match type_.kind:
            case Kind.ARRAY:
                return arrays.cells(type_, values, self)
            case Kind.HSTORE:
                return hstore.cells(values, self)
            case _:
                return (values,)

    def brackets(self, marks: arrays.Marks) -> pa.BinaryArray:
        """JSON's brackets and commas."""
        letters = np.full((len(marks.opens), 1), ord(","), np.uint8)
        letters[marks.opens] = ord("[")
        letters[marks.closes] = ord("]")
        return columns.fixed(letters)

    def pair_marks(self, keys: NDArray[np.bool_], last: NDArray[np.bool_]) -> pa.BinaryArray:
        """Colons and commas; nothing after the last value."""
        letters = np.where(keys, ord(":"), ord(",")).astype(np.uint8)
        return columns.column(letters[~last], columns.starts_of(~last))

    def mapping(self, members: pa.BinaryArray, counts: NDArray[np.integer]) -> Pieces:  # noqa: ARG002
        """Objects: the members in braces."""
        return (_around(b"{", members, b"}"),)

    def object(self, fields: Sequence[Field]) -> Pieces:
        """Objects; a comma precedes each member except the first of its row.

        `some` is whether earlier members exist: one answer for all rows, or a mask per row after a
        member that only some rows have. Members a (row 1 only), b and c give, row by row:

            {"a":1,"b":2,"c":3}      a: no comma   b: comma where a is present   c: comma
            {"b":2,"c":3}
        """
        pieces: list[Piece] = [b"{"]
        some: bool | NDArray[np.bool_] = False
        for field in fields:
            if field.present is None and isinstance(some, bool):
                pieces += [_name(field.name, some), *field.value]
                some = True
                continue
            lead = (
                _name(field.name, some)
                if isinstance(some, bool)
                else where(some, _name(field.name, True), _name(field.name, False))
            )
            if field.present is None:
                pieces += [lead, *field.value]
                some = True
            else:
                pieces.append(only(field.present, [lead, *field.value], null=self.null))
                some = some is True or some | field.present
        return (*pieces, b"}")


@lru_cache(maxsize=65536)
def _name(name: str, comma: bool) -> bytes:
    return (b"," if comma else b"") + orjson.dumps(name) + b":"


def quoted(values: pa.BinaryArray) -> pa.BinaryArray:
    """Values in quotes; nulls stay null."""
    return _around(b'"', values, b'"')


def _around(before: bytes, values: pa.BinaryArray, after: bytes) -> pa.BinaryArray:
    return pc.binary_join_element_wise(
        columns.constant(before), values, columns.constant(after), columns.constant(b"")
    )


def _bools(values: pa.BinaryArray) -> pa.BinaryArray:
    is_true = pc.equal(values, columns.constant(b"t"))
    return pc.if_else(is_true, columns.constant(b"true"), columns.constant(b"false"))


def _floats(values: pa.BinaryArray) -> pa.BinaryArray:
    """JSON has no NaN and no infinities: those become strings. A bare -0 would read as 0."""
    negative = pc.equal(values, columns.constant(b"-0"))
    if pc.any(negative).as_py():
        values = pc.if_else(negative, columns.constant(b"-0.0"), values)
    data = columns.content(values)
    odd = (data == ord("N")) | (data == ord("I"))
    if not odd.any():
        return values
    mask = np.zeros(len(values), bool)
    mask[columns.rows_of(np.flatnonzero(odd), columns.offsets(values))] = True
    return pc.if_else(pa.array(mask), quoted(values), values)


_UNCHANGED = frozenset({Kind.INT2, Kind.INT4, Kind.INT8, Kind.OID, Kind.JSON, Kind.JSONB})
_STRUCTURED = frozenset({Kind.ARRAY, Kind.HSTORE, Kind.VECTOR})
_ENCODERS = {Kind.BOOL: _bools, Kind.FLOAT4: _floats, Kind.FLOAT8: _floats}
_STRING_ENCODERS = {
    Kind.TIMESTAMP: text.iso_timestamps,
    Kind.TIMESTAMPTZ: text.iso_instants,
    Kind.BYTEA: binary.base64_of_hex,
}
_PLAIN = frozenset(
    {
        Kind.NUMERIC, Kind.DATE, Kind.TIME, Kind.TIMETZ, Kind.INTERVAL, Kind.UUID, Kind.NETWORK,
        Kind.BITS, Kind.LSN,
    }
)  # fmt: skip
