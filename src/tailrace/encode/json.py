"""JSON: cells as JSON text, objects as joins."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.decode.types import Kind, Type
from tailrace.encode import arrays, binary, columns, hstore, text
from tailrace.encode.pieces import Piece, Pieces, join, where
from tailrace.encode.syntax import Field

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_TRUE, _FALSE = pa.scalar(b"true", pa.binary()), pa.scalar(b"false", pa.binary())
_NEEDS_NO_ESCAPE = frozenset(
    {
        Kind.NUMERIC, Kind.DATE, Kind.TIME, Kind.TIMETZ, Kind.INTERVAL, Kind.UUID, Kind.NETWORK,
        Kind.BITS, Kind.LSN,
    }
)  # fmt: skip


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
        """Strings that need no escaping. Without nulls the quotes join the constants around."""
        if not values.null_count:
            return (b'"', values, b'"')
        return (quoted(values),)

    def integers(self, values: NDArray[np.integer]) -> Pieces:
        """Decimal digits."""
        return (columns.text_of(pa.array(values)),)

    def document(self, values: pa.BinaryArray) -> Pieces:
        """JSON stands in JSON as it is."""
        return (values,)

    def cells(self, type_: Type, values: pa.BinaryArray, *, native: bool) -> Pieces:
        """PostgreSQL's text of values as JSON."""
        match type_.kind:
            case Kind.INT2 | Kind.INT4 | Kind.INT8 | Kind.OID | Kind.JSON | Kind.JSONB:
                return (values,)
            case Kind.BOOL:
                return (pc.if_else(pc.equal(values, b"t"), _TRUE, _FALSE),)
            case Kind.FLOAT4 | Kind.FLOAT8:
                return (_floats(values),)
            case Kind.TIMESTAMP:
                return self.plain(text.iso_timestamps(values))
            case Kind.TIMESTAMPTZ:
                return self.plain(text.iso_instants(values))
            case Kind.BYTEA:
                return self.plain(binary.base64(binary.unhex(values)))
            case kind if kind in _NEEDS_NO_ESCAPE:
                return self.plain(values)
            case _ if native and (opened := self._opened(type_, values)):
                return opened
            case _:
                return self.text(values)

    def _opened(self, type_: Type, values: pa.BinaryArray) -> Pieces | None:
        match type_.kind:
            case Kind.ARRAY if type_.element is not None:
                return arrays.to_json(type_.element, values, self)
            case Kind.VECTOR:
                return (values,)
            case Kind.HSTORE:
                return hstore.to_json(values, self)
            case _:
                return None

    def object(self, fields: Sequence[Field]) -> Pieces:
        """Objects; a comma stands before a member that is not the first of its row."""
        pieces: list[Piece] = [b"{"]
        some: bool | NDArray[np.bool_] = False
        for field in fields:
            if field.present is None and isinstance(some, bool):
                pieces += [_name(field.name, some), *field.value]
                some = True
                continue
            lead: Piece = (
                _name(field.name, some)
                if isinstance(some, bool)
                else where(some, _name(field.name, True), _name(field.name, False))
            )
            pieces.append(_present(field, lead, self.null))
            some = True if field.present is None or some is True else some | field.present
        return (*pieces, b"}")


def _present(field: Field, lead: Piece, null: bytes) -> pa.BinaryArray:
    if isinstance(lead, bytes) and all(isinstance(piece, bytes) for piece in field.value):
        assert field.present is not None
        return where(field.present, b"".join([lead, *map(bytes, field.value)]), b"")
    member = join([lead, *field.value], null=null)
    return member if field.present is None else where(field.present, member, b"")


@lru_cache(maxsize=65536)
def _name(name: str, comma: bool) -> bytes:
    return (b"," if comma else b"") + orjson.dumps(name) + b":"


def quoted(values: pa.BinaryArray) -> pa.BinaryArray:
    """Values in quotes; nulls stay null."""
    return pc.binary_join_element_wise(b'"', values, b'"', b"")


def _floats(values: pa.BinaryArray) -> pa.BinaryArray:
    """JSON has no NaN and no infinities: those become strings."""
    data = columns.content(values)
    odd = (data == ord("N")) | (data == ord("I"))
    if not odd.any():
        return values
    mask = np.zeros(len(values), bool)
    mask[columns.rows_of(np.flatnonzero(odd), columns.offsets(values))] = True
    return pc.if_else(pa.array(mask), quoted(values), values)
