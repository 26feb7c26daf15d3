"""Values of messages, converted by column into the forms that targets take.

docs/reference/types.md describes the values of messages: numbers, booleans, text, bytes (base64 in
JSON), and JSON documents, parsed or as the text that PostgreSQL wrote (`Json`). The conversion is
exact: text stays text.
"""

from __future__ import annotations

import base64
import math
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa

from tailrace.client.creek.values import Json
from tailrace.mirror.layout import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


def transpose(rows: Sequence[Mapping[str, Any]], names: Iterable[str]) -> list[list[Any]]:
    """The columns of rows, as lists. Every row must have every column."""
    return [[row[name] for row in rows] for name in names]


def plain(kind: Kind, values: list[Any]) -> list[Any]:
    """A column as Python's bool, int, float, bytes and str; JSON documents as text."""
    match kind:
        case Kind.BOOL | Kind.INTEGER:
            return values
        case Kind.FLOAT:
            return [float(value) if isinstance(value, str) else value for value in values]
        case Kind.BYTES:
            return [base64.b64decode(v) if isinstance(v, str) else v for v in values]
        case Kind.JSON:
            return [None if value is None else _json_text(value) for value in values]
        case Kind.TEXT:
            # The common case, without a copy.
            if all(type(value) is str or value is None for value in values):
                return values
            return [text(value) for value in values]


def _json_text(value: Any) -> str:
    return str(value) if isinstance(value, Json) else orjson.dumps(value).decode()


def text(value: Any) -> str | None:
    """The value in PostgreSQL's text format."""
    match value:
        case None | str():
            return value
        case bool():
            return "true" if value else "false"
        case float():
            return _float_text(value)
        case bytes():
            return "\\x" + value.hex()
        case dict() | list():
            return orjson.dumps(value).decode()
        case _:
            return str(value)


def _float_text(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return repr(value)


_ARROW = {
    Kind.BOOL: pa.bool_(),
    Kind.INTEGER: pa.int64(),
    Kind.FLOAT: pa.float64(),
    Kind.BYTES: pa.binary(),
    Kind.JSON: pa.string(),
    Kind.TEXT: pa.string(),
}


def arrow(kind: Kind, values: list[Any]) -> pa.Array:
    """A column of plain values as an Arrow array."""
    return pa.array(values, _ARROW[kind])
