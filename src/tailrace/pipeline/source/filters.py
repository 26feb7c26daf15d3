"""Spark's filters as SQL for PostgreSQL, where both are sure to mean the same or PostgreSQL less.

Spark applies every filter again, so the SQL may let rows through that Spark drops. It must never
drop one that Spark keeps: text is compared in its own way by each collation, and a value that Spark
cannot hold is a null there, so such cases are left to Spark.
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
from tailrace.postgres.connection import quote_ident, quote_literal

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
"""How a value is written in SQL, and what Spark must have made of it for that to be right."""
_COMPARED = {
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
}
_TEXT_OIDS = frozenset({25, 1043})


def conditions(filters: Sequence[Filter], table: Table) -> list[str]:
    """SQL for the filters that PostgreSQL can apply."""
    kinds = {
        column.name: _kind(column.type_oid, column.type_modifier, table)
        for column in table.relation.columns
    }
    made = [_condition(each, kinds) for each in filters]
    return [each for each in made if each]


def _kind(oid: int, modifier: int, table: Table) -> Kind | None:
    kind = resolve(oid, modifier, table.types).kind
    # Many types pass as text; only real text may be compared with any string.
    return None if kind is Kind.TEXT and oid not in _TEXT_OIDS else kind


def _condition(given: Filter, kinds: dict[str, Kind | None]) -> str:
    path: tuple[str, ...] = getattr(given, "attribute", ())
    kind = kinds.get(path[0]) if len(path) == 1 else None
    if kind is None:
        return ""
    column = quote_ident(path[0])
    match given:
        case IsNotNull():
            return f"{column} IS NOT NULL"
        case EqualTo():
            typed = _typed([given.value], _EQUAL.get(kind))
            return f"{column} = {typed[0]}" if typed else ""
        case In():
            typed = _typed(list(given.value), _EQUAL.get(kind))
            return f"{column} IN ({', '.join(typed)})" if typed else ""
        case GreaterThan() | GreaterThanOrEqual() | LessThan() | LessThanOrEqual():
            typed = _typed([given.value], _ORDERED.get(kind))
            return f"{column} {_COMPARED[type(given)]} {typed[0]}" if typed else ""
        case _:
            return ""


def _typed(values: list[object], form: tuple[str, type] | None) -> list[str]:
    """Values as SQL, all or none."""
    if form is None:
        return []
    name, kind = form
    if any(type(value) is not kind for value in values):
        return []
    return [f"{quote_literal(_text(value))}::{name}" for value in values]


def _text(value: object) -> str:
    return value.isoformat() if isinstance(value, date) else str(value)
