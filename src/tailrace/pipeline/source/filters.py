"""Filter pushdown: Spark's filters as SQL for PostgreSQL.

Spark applies every filter again, so the SQL may return rows that Spark drops. It must never drop a
row that Spark keeps. Therefore a filter is pushed down only if both sides agree: not for text
beyond equality (collations differ), and not for values that Spark cannot represent (it reads NULL).
"""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from tailrace.decode.types import Kind, resolve
from tailrace.postgres.names import quote_ident, quote_literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql.datasource import Filter

    from tailrace.snapshot.table import Table

_WHOLE = ("int8", int)
_ORDERED: dict[Kind, tuple[str, type]] = {
    Kind.INT2: _WHOLE,
    Kind.INT4: _WHOLE,
    Kind.INT8: _WHOLE,
    Kind.OID: _WHOLE,
    Kind.DATE: ("date", date),
    Kind.TIMESTAMP: ("timestamp", datetime),
    Kind.TIMESTAMPTZ: ("timestamptz", datetime),
    Kind.NUMERIC: ("numeric", Decimal),
}
_EQUAL = _ORDERED | {Kind.TEXT: ("text", str), Kind.BOOL: ("bool", bool)}
"""The SQL type of the literal, and the Python type that Spark's value must have."""
_COMPARED = {
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
}
_TEXT_OIDS = frozenset({25, 1043})


def conditions(filters: Sequence[Filter], table: Table) -> list[str]:
    """SQL conditions for the filters that PostgreSQL can apply."""
    kinds = {
        column.name: _kind(column.type_oid, column.type_modifier, table)
        for column in table.relation.columns
    }
    pushed = [_condition(condition, kinds) for condition in filters]
    return [sql for sql in pushed if sql]


def _kind(oid: int, modifier: int, table: Table) -> Kind | None:
    kind = resolve(oid, modifier, table.types).kind
    # Other types are also read as text; only `text` and `varchar` compare with any string.
    return None if kind is Kind.TEXT and oid not in _TEXT_OIDS else kind


def _condition(condition: Filter, kinds: dict[str, Kind | None]) -> str:
    """One filter as SQL; empty if only Spark can apply it."""
    path: tuple[str, ...] = getattr(condition, "attribute", ())
    kind = kinds.get(path[0]) if len(path) == 1 else None
    if kind is None:
        return ""
    column = quote_ident(path[0])
    match condition:
        case IsNotNull():
            return f"{column} IS NOT NULL"
        case EqualTo():
            typed = _typed([condition.value], _EQUAL.get(kind))
            return f"{column} = {typed[0]}" if typed else ""
        case In():
            typed = _typed(list(condition.value), _EQUAL.get(kind))
            return f"{column} IN ({', '.join(typed)})" if typed else ""
        case GreaterThan() | GreaterThanOrEqual() | LessThan() | LessThanOrEqual():
            typed = _typed([condition.value], _ORDERED.get(kind))
            return f"{column} {_COMPARED[type(condition)]} {typed[0]}" if typed else ""
        case _:
            return ""


def _typed(values: list[object], form: tuple[str, type] | None) -> list[str]:
    """The values as SQL literals; empty unless all of them have the expected type."""
    if form is None:
        return []
    name, kind = form
    if any(type(value) is not kind for value in values):
        return []
    return [f"{quote_literal(_text(value))}::{name}" for value in values]


def _text(value: object) -> str:
    return value.isoformat() if isinstance(value, date) else str(value)
