"""Types of cells: PostgreSQL's text → Spark values, and Spark values → PostgreSQL's text.

A cell of the cells frame is PostgreSQL's text of a value. An expression sees it as a value of a
Spark type. A text that the type cannot represent (an infinite timestamp, a numeric of a hundred
digits) stops the query with an error; it never becomes NULL and never loses a digit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.pipeline.expressions import sql

if TYPE_CHECKING:
    from tailrace.schema import Column

BOOL, BYTEA, INT8, INT2, INT4, OID = 16, 17, 20, 21, 23, 26
JSON, FLOAT4, FLOAT8, DATE, TIMESTAMP, TIMESTAMPTZ, NUMERIC, JSONB = (
    *(114, 700, 701, 1082, 1114, 1184, 1700, 3802),
)
TEXT = 25

_INTEGERS = {INT2: "SMALLINT", INT4: "INT", INT8: "BIGINT", OID: "BIGINT"}
_FLOATS = {FLOAT4: "FLOAT", FLOAT8: "DOUBLE"}
_DATES = {DATE: "DATE", TIMESTAMP: "TIMESTAMP_NTZ", TIMESTAMPTZ: "TIMESTAMP"}

_FIXED = frozenset(
    {BOOL, INT2, INT4, INT8, OID, FLOAT4, FLOAT8, DATE, TIMESTAMP, TIMESTAMPTZ}
    # "char", name, money, macaddr, macaddr8, time, interval, timetz, uuid
    | {18, 19, 790, 829, 774, 1083, 1186, 1266, 2950}
)
"""Types of a fixed size: PostgreSQL never stores them out of line (TOAST)."""

_DIGITS = 38
"""The precision of Spark's largest decimal."""
_SCALE = 20
"""The scale for a numeric without one. PostgreSQL's division returns up to 20 digits."""


def toastable(column: Column) -> bool:
    """Whether PostgreSQL may leave the column out of an update as unchanged."""
    return column.type_oid not in _FIXED


@dataclass(frozen=True, slots=True)
class Decimal:
    """Precision and scale in Spark. `exact`: every value of the column fits the scale."""

    precision: int
    scale: int
    exact: bool

    @classmethod
    def of(cls, modifier: int) -> Decimal:
        """The decimal for the type modifier of a numeric.

        >>> Decimal.of(((10 << 16) | 2) + 4)
        Decimal(precision=10, scale=2, exact=True)
        >>> Decimal.of(-1)
        Decimal(precision=38, scale=20, exact=False)
        """
        if modifier < 4:
            return cls(_DIGITS, _SCALE, exact=False)
        precision = (modifier - 4) >> 16 & 0xFFFF
        scale = (((modifier - 4) & 0x7FF) ^ 0x400) - 0x400
        # Since PostgreSQL 15 a scale may be negative or larger than the precision.
        whole, fraction = max(precision - scale, 0), max(scale, 0)
        if whole + fraction <= _DIGITS:
            return cls(max(whole + fraction, 1), fraction, exact=True)
        scale = min(fraction, _SCALE)
        return cls(_DIGITS, scale, exact=scale == fraction)


def spark_type(column: Column) -> str:
    """The Spark type that an expression sees for a column."""
    oid = column.type_oid
    if oid == NUMERIC:
        decimal = Decimal.of(column.type_modifier)
        return f"DECIMAL({decimal.precision},{decimal.scale})"
    if oid in (BOOL, BYTEA):
        return {BOOL: "BOOLEAN", BYTEA: "BINARY"}[oid]
    return (_INTEGERS | _FLOATS | _DATES).get(oid, "STRING")


def value(text: str, column: Column, *, place: str) -> str:
    """Spark SQL for the value of a cell, from Spark SQL for its text."""
    kind = spark_type(column)
    if kind == "STRING":
        return text
    if kind == "BOOLEAN":
        return f"({text} = 't')"
    if kind == "BINARY":
        return f"unhex(substring({text}, 3))"
    cast = f"try_cast({text} AS {kind})"
    if column.type_oid in _INTEGERS or column.type_oid in _FLOATS:
        return cast
    refusal = sql.stop(
        f"{place} has a value that {kind} cannot represent; read it with text({column.name})"
    )
    checked = f"coalesce({cast}, CASE WHEN {text} IS NOT NULL THEN {refusal} END)"
    misread = _misread(text, column)
    return f"(CASE WHEN {misread} THEN {refusal} ELSE {checked} END)" if misread else checked


def _misread(text: str, column: Column) -> str:
    """A condition for texts that Spark would read as another value instead of failing."""
    if column.type_oid in _DATES:
        # Spark reads a date up to the first blank, so '0044-03-15 BC' would be a date AD.
        return f"endswith({text}, 'BC')"
    decimal = Decimal.of(column.type_modifier)
    # Spark rounds digits beyond the scale.
    return "" if decimal.exact else f"{text} RLIKE '[.][0-9]{{{decimal.scale},}}[1-9]'"


def text_of(value_sql: str, kind: str) -> tuple[str, int] | None:
    """Spark SQL for PostgreSQL's text of a value, and the oid of the PostgreSQL type.

    Structs, maps and arrays are JSON. None for a type without a text: intervals. `kind` is Spark's
    spelling of the type, such as `decimal(10,2)`.
    """
    plain = f"CAST({value_sql} AS STRING)"
    known = {
        "boolean": (f"left({plain}, 1)", BOOL),
        "timestamp": (f"concat({_wall(value_sql)}, '+00')", TIMESTAMPTZ),
        # Spark writes a plus before years of five digits.
        "timestamp_ntz": (f"ltrim('+', {plain})", TIMESTAMP),
        "date": (f"ltrim('+', {plain})", DATE),
        "binary": (f"concat({sql.string(chr(92) + 'x')}, lower(hex({value_sql})))", BYTEA),
        "string": (plain, TEXT),
        "void": (plain, TEXT),
        **{number: (plain, oid) for number, oid in _NUMBERS.items()},
    }
    if kind.startswith(_NESTED):
        return json(value_sql), JSON
    return (plain, NUMERIC) if kind.startswith("decimal(") else known.get(kind)


def json(value_sql: str) -> str:
    """Spark SQL for a value as JSON: no field is left out, and no digit of a time."""
    options = (f"{sql.string(name)}, {sql.string(value)}" for name, value in _JSON_OPTIONS.items())
    return f"to_json({value_sql}, map({', '.join(options)}))"


def payload_of(value_sql: str, kind: str) -> str | None:
    """Spark SQL for the bytes of a message, from a value; None for a type without a text."""
    if kind == "binary":
        return value_sql
    text = text_of(value_sql, kind)
    return None if text is None else f"CAST({text[0]} AS BINARY)"


_NESTED = ("struct<", "map<", "array<")
_JSON_OPTIONS = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
_NUMBERS = {
    "tinyint": INT2,
    "smallint": INT2,
    "int": INT4,
    "bigint": INT8,
    "float": FLOAT4,
    "double": FLOAT8,
}


def _wall(value_sql: str) -> str:
    """A timestamp's date and time in UTC, in any time zone of the session."""
    epoch = "TIMESTAMP_NTZ '1970-01-01 00:00:00'"
    moment = f"timestampadd(MICROSECOND, unix_micros({value_sql}), {epoch})"
    return f"ltrim('+', CAST({moment} AS STRING))"
