"""Column types, casts and rows as DuckDB reads them: Arrow tables of plain values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tailrace.mirror.layout import Kind
from tailrace.mirror.targets.sql import quote
from tailrace.mirror.targets.values import arrow, plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.mirror.layout import Column, Layout

_TYPES = {
    "boolean": "BOOLEAN",
    "smallint": "SMALLINT",
    "integer": "INTEGER",
    "bigint": "BIGINT",
    "oid": "BIGINT",
    "real": "FLOAT",
    "double precision": "DOUBLE",
    "bytea": "BLOB",
    "uuid": "UUID",
    "date": "DATE",
    "timestamp without time zone": "TIMESTAMP",
    "timestamp with time zone": "TIMESTAMPTZ",
}
_DATE_TYPES = frozenset({"DATE", "TIMESTAMP", "TIMESTAMPTZ"})


def _type(column: Column) -> str:
    return _TYPES.get(column.data_type, "VARCHAR")


def declaration(column: Column) -> str:
    """A column in CREATE TABLE."""
    return f"{quote(column.name)} {_type(column)}"


def cast(column: Column, name: str) -> str:
    """A plain value as a value of the column's type."""
    return f"CAST({name} AS {_type(column)})"


def as_plain(column: Column) -> str:
    """A column of the table `t` as a plain value."""
    name = f"t.{quote(column.name)}"
    return f"CAST({name} AS VARCHAR)" if column.kind is Kind.TEXT else name


def row_match(columns: Sequence[Column], operator: str = "=") -> str:
    """The condition that a row of the table `t` matches a row of the batch `b`."""
    return " AND ".join(
        f"t.{quote(column.name)} {operator} {cast(column, f'b.{quote(column.name)}')}"
        for column in columns
    )


def plain_rows(layout: Layout, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with plain values. All rows must have the same columns."""
    if not rows:
        return []
    columns = layout.only(rows[0])
    values = [plain(column.kind, [row[column.name] for row in rows]) for column in columns]
    names = [column.name for column in columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]


def arrow_table(columns: Sequence[Column], values: Sequence[list[Any]]) -> pa.Table:
    """Columns of plain values as an Arrow table."""
    pairs = zip(columns, values, strict=True)
    return pa.table({column.name: _array(column, column_values) for column, column_values in pairs})


def _array(column: Column, values: list[Any]) -> pa.Array:
    if _type(column) in _DATE_TYPES:
        values = [_move_era(v) if v is not None and v.endswith(" BC") else v for v in values]
    return arrow(column.kind, values)


def _move_era(text: str) -> str:
    """A timestamp before year 1 as DuckDB reads it: the era follows the date.

    >>> _move_era("0044-03-15 12:00:00 BC")
    '0044-03-15 (BC) 12:00:00'
    """
    date, _, time_ = text.removesuffix(" BC").partition(" ")
    return f"{date} (BC) {time_}".rstrip()
