"""Column types and values as SQLite stores them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tailrace.mirror.layout import Alteration, Kind, Layout
from tailrace.mirror.targets.sql import quote
from tailrace.mirror.targets.values import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.mirror.layout import Column

_TYPES = {
    Kind.BOOL: "BOOLEAN",
    Kind.INTEGER: "INTEGER",
    Kind.FLOAT: "REAL",
    Kind.BYTES: "BLOB",
    Kind.JSON: "TEXT",
    Kind.TEXT: "TEXT",
}


def declaration(column: Column, layout: Layout) -> str:
    """A column in CREATE TABLE."""
    primary = has_rowid_key(layout) and column.name == layout.key[0]
    return f"{quote(column.name)} {_TYPES[column.kind]}{' PRIMARY KEY' if primary else ''}"


def has_rowid_key(layout: Layout) -> bool:
    """Whether the key is one integer: SQLite then uses it as the rowid, its fastest lookup."""
    return len(layout.key) == 1 and layout.only(layout.key)[0].kind is Kind.INTEGER


def can_alter(before: Layout, after: Layout) -> bool:
    """Whether ALTER TABLE is enough: SQLite can change neither types nor keys."""
    return before.key == after.key and not Alteration.between(before, after).retyped


def stored_columns(columns: Sequence[Column], values: Sequence[list[Any]]) -> list[list[Any]]:
    """Columns as SQLite stores them. SQLite turns NaN into NULL, so NaN becomes text."""
    converted = []
    for column, column_values in zip(columns, values, strict=True):
        stored = plain(column.kind, column_values)
        if column.kind is Kind.FLOAT:
            stored = ["NaN" if isinstance(v, float) and math.isnan(v) else v for v in stored]
        converted.append(stored)
    return converted


def stored_row(layout: Layout, row: dict[str, Any]) -> dict[str, Any]:
    """Some columns of one row as SQLite stores them."""
    columns = layout.only(row)
    values = stored_columns(columns, [[row[column.name]] for column in columns])
    return {column.name: value for column, [value] in zip(columns, values, strict=True)}
