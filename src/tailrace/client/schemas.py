"""Schema documents, and rows typed by them.

A message holds numbers, booleans and strings; the type that a string stands for is in the schema
document of its table. A value that its Python type cannot hold (`infinity`, a year before 1 or
after 9999) stays a string, so typing loses nothing.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from tailrace.client.names import Table
from tailrace.errors import MalformedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column as in PostgreSQL's catalog."""

    name: str
    position: int
    data_type: str
    is_nullable: bool
    column_default: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """The columns and the key of a table. `timestamp` is when they were first seen, in seconds."""

    table: Table
    timestamp: int
    columns: tuple[Column, ...]
    key: tuple[str, ...] | None = None
    """The columns of the key; `()` for a table without one. None: not in the document."""
    relation: int | None = None
    """OID of the table, as in changes. None: not in the document."""

    @classmethod
    def of(cls, key: str, document: Mapping[str, Any]) -> Self:
        """Read a document of the bucket."""
        try:
            columns = tuple(_column(column) for column in document["columns"])
            key_columns = document.get("key")
            return cls(
                table=Table.of_key(key),
                timestamp=document["timestamp"],
                columns=columns,
                key=None if key_columns is None else tuple(key_columns),
                relation=document.get("relation_id"),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise MalformedError(f"the schema document {key!r} is invalid: {error!r}") from error

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names, in the table's order."""
        return tuple(column.name for column in self.columns)

    @property
    def types(self) -> dict[str, str]:
        """Data types by column name."""
        return {column.name: column.data_type for column in self.columns}


def _column(document: Mapping[str, Any]) -> Column:
    return Column(
        name=document["name"],
        position=document["position"],
        data_type=document["data_type"],
        is_nullable=document["is_nullable"],
        column_default=document["column_default"],
    )


class RowTyper:
    """Converts the values of a table's rows to their Python types, in place."""

    def __init__(self, schema: Schema | None) -> None:
        types = schema.types if schema else {}
        self._columns = frozenset(types)
        self._parsers = {name: _PARSERS[kind] for name, kind in types.items() if kind in _PARSERS}

    def unknown(self, row: Mapping[str, Any]) -> set[str]:
        """Columns that are not in the document: a newer document exists or is about to."""
        return set() if self._columns.issuperset(row) else row.keys() - self._columns

    def apply(self, row: dict[str, Any]) -> dict[str, Any]:
        """Convert a row."""
        for name, parse in self._parsers.items():
            value = row.get(name)
            if isinstance(value, str):
                row[name] = parse(value)
        return row


def _parser(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """A parser that returns the text itself where it is invalid for the Python type."""

    def parse_or_text(text: str) -> Any:
        try:
            return parse(text)
        except (ValueError, InvalidOperation):
            return text

    return parse_or_text


_PARSERS: dict[str, Callable[[str], Any]] = {
    "numeric": _parser(Decimal),
    "uuid": _parser(UUID),
    "date": _parser(date.fromisoformat),
    "time without time zone": _parser(time.fromisoformat),
    "time with time zone": _parser(time.fromisoformat),
    "timestamp without time zone": _parser(datetime.fromisoformat),
    "timestamp with time zone": _parser(datetime.fromisoformat),
    "real": _parser(float),
    "double precision": _parser(float),
    # Binary in MessagePack, base64 in JSON.
    "bytea": _parser(lambda text: base64.b64decode(text, validate=True)),
}
