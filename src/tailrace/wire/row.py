"""Row images on the wire (pgoutput's TupleData): a column count, then one value per column.

A value is `n` (NULL), `u` (unchanged TOAST), or `t` (text) or `b` (binary) with a length. ABSENT
has no wire form: `key_row` sets it for the columns that are not part of an old key.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, assert_never

from tailrace.change import ABSENT, UNCHANGED, Binary, Missing
from tailrace.errors import MalformedError

if TYPE_CHECKING:
    from tailrace.change import Row, Value
    from tailrace.schema import Relation
    from tailrace.wire.cursor import Cursor

_INT16 = Struct("!h")
_INT32 = Struct("!i")


def read_row(cursor: Cursor) -> Row:
    """The row image at the cursor. Text values stay bytes."""
    count = cursor.count(_INT16, 1, "columns")
    data, at, end = cursor.data, cursor.offset, len(cursor.data)
    values: list[Value] = []
    for _ in range(count):
        kind = data[at : at + 1]
        if kind in (b"t", b"b"):
            start = at + 5
            length: int = _INT32.unpack_from(data, at + 1)[0] if start <= end else -1
            if not 0 <= length <= end - start:
                raise cursor.malformed("a value length that fits the message", at + 1)
            at = start + length
            text = data[start:at]
            values.append(text if kind == b"t" else Binary(text))
        elif kind == b"n":
            at += 1
            values.append(None)
        elif kind == b"u":
            at += 1
            values.append(UNCHANGED)
        else:
            raise cursor.malformed("a value kind out of b'tbnu'", at)
    cursor.offset = at
    return tuple(values)


def write_row(row: Row) -> bytes:
    """A row image's bytes."""
    return b"".join([_INT16.pack(len(row)), *map(_write_value, row)])


def _write_value(value: Value) -> bytes:
    match value:
        case bytes():
            return b"t" + _INT32.pack(len(value)) + value
        case None:
            return b"n"
        case Binary(data):
            return b"b" + _INT32.pack(len(data)) + data
        case Missing.UNCHANGED:
            return b"u"
        case Missing.ABSENT:
            raise MalformedError("an absent column has no wire form; an old key has NULLs")
        case _:
            assert_never(value)


def key_row(row: Row, relation: Relation) -> Row:
    """An old key with its other columns ABSENT; on the wire they are NULLs."""
    if len(row) != len(relation.columns):
        raise MalformedError(
            f"an old key of {relation.qualified_name} has {len(row)} columns, "
            f"its relation has {len(relation.columns)}"
        )
    return tuple(
        value if column.key else ABSENT for value, column in zip(row, relation.columns, strict=True)
    )
