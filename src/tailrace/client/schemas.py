"""Schema documents, and rows typed by them.

A message says numbers, booleans and strings; what a string stands for only the table knows. A value
that its Python type cannot hold (`infinity`, a year before Christ or after 9999) stays the string
it is, so nothing is lost by typing.
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
    """A column as PostgreSQL's catalog has it."""

    name: str
    position: int
    data_type: str
    is_nullable: bool
    column_default: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """What a table looks like. `timestamp` is when that was first seen, in seconds."""

    table: Table
    timestamp: int
    columns: tuple[Column, ...]
    key: tuple[str, ...] | None = None
    """Columns that tell rows apart; none: `()`. None: the document does not tell."""
    relation: int | None = None
    """PostgreSQL's number of the table, as changes have it. None: the document does not tell."""

    @classmethod
    def of(cls, key: str, document: Mapping[str, Any]) -> Self:
        """Read a document of the bucket."""
        try:
            columns = tuple(_column(each) for each in document["columns"])
            told = document.get("key")
            return cls(
                table=Table.of_key(key),
                timestamp=document["timestamp"],
                columns=columns,
                key=None if told is None else tuple(told),
                relation=document.get("relation_id"),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise MalformedError(f"the schema document {key!r} is not understood") from error

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names, in their order."""
        return tuple(column.name for column in self.columns)

    @property
    def types(self) -> dict[str, str]:
        """Data types by column."""
        return {column.name: column.data_type for column in self.columns}


def _column(document: Mapping[str, Any]) -> Column:
    return Column(
        name=document["name"],
        position=document["position"],
        data_type=document["data_type"],
        is_nullable=document["is_nullable"],
        column_default=document["column_default"],
    )


class Typing:
    """Gives the values of a table's rows their Python types, in place."""

    def __init__(self, schema: Schema | None) -> None:
        self._known = frozenset(schema.types if schema else ())
        self._readers = {
            name: _READERS[kind]
            for name, kind in (schema.types if schema else {}).items()
            if kind in _READERS
        }

    def unknown(self, row: Mapping[str, Any]) -> set[str]:
        """Columns that the document does not tell of: there is, or will be, a newer one."""
        return set() if self._known.issuperset(row) else row.keys() - self._known

    def apply(self, row: dict[str, Any]) -> dict[str, Any]:
        """Type a row."""
        for name, read in self._readers.items():
            value = row.get(name)
            if isinstance(value, str):
                row[name] = read(value)
        return row


def _reader(read: Callable[[str], Any]) -> Callable[[str], Any]:
    def tolerant(text: str) -> Any:
        try:
            return read(text)
        except (ValueError, InvalidOperation):
            return text

    return tolerant


_READERS: dict[str, Callable[[str], Any]] = {
    "numeric": _reader(Decimal),
    "uuid": _reader(UUID),
    "date": _reader(date.fromisoformat),
    "time without time zone": _reader(time.fromisoformat),
    "time with time zone": _reader(time.fromisoformat),
    "timestamp without time zone": _reader(datetime.fromisoformat),
    "timestamp with time zone": _reader(datetime.fromisoformat),
    "real": _reader(float),
    "double precision": _reader(float),
    # Binary in MessagePack, base64 in JSON.
    "bytea": _reader(lambda text: base64.b64decode(text, validate=True)),
}
