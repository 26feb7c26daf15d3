"""PostgreSQL's types: what the text of a column means, and the type's name in SQL.

A relation gives each column a type oid and a modifier; the stream names types that are not built in
before it uses them. From these come a `Type`, which encoders and frames use, and the SQL name. A
domain arrives under its own oid with the name of its base type, so it is read as its base type. An
unknown type is text: PostgreSQL's text form of a value is always exact.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.schema import TypeName


class Kind(enum.Enum):
    """What the text of a value means. Types that are only passed on as text share `TEXT`."""

    BOOL = "bool"
    INT2 = "int2"
    INT4 = "int4"
    INT8 = "int8"
    OID = "oid"
    FLOAT4 = "float4"
    FLOAT8 = "float8"
    NUMERIC = "numeric"
    TEXT = "text"
    BYTEA = "bytea"
    DATE = "date"
    TIME = "time"
    TIMETZ = "timetz"
    TIMESTAMP = "timestamp"
    TIMESTAMPTZ = "timestamptz"
    INTERVAL = "interval"
    UUID = "uuid"
    JSON = "json"
    JSONB = "jsonb"
    NETWORK = "network"
    BITS = "bits"
    MONEY = "money"
    LSN = "lsn"
    RANGE = "range"
    GEOMETRY = "geometry"
    SEARCH = "search"
    HSTORE = "hstore"
    VECTOR = "vector"
    ARRAY = "array"


@dataclass(frozen=True, slots=True, kw_only=True)
class Type:
    """A column's type. `precision` and `scale` are those of a limited numeric."""

    kind: Kind
    precision: int | None = None
    scale: int = 0
    element: Type | None = None
    """Of an array."""
    delimiter: str = ","
    """Between elements of an array of this type; a semicolon for boxes alone."""


@dataclass(frozen=True, slots=True)
class _BuiltIn:
    """A row of PostgreSQL's `pg_type`: oid, oid of the array type, names, kind."""

    oid: int
    array_oid: int
    name: str
    sql: str
    kind: Kind


# src/include/catalog/pg_type.dat; oids of built-in types never change.
_BUILT_IN = (
    _BuiltIn(16, 1000, "bool", "boolean", Kind.BOOL),
    _BuiltIn(17, 1001, "bytea", "bytea", Kind.BYTEA),
    _BuiltIn(18, 1002, "char", '"char"', Kind.TEXT),
    _BuiltIn(19, 1003, "name", "name", Kind.TEXT),
    _BuiltIn(20, 1016, "int8", "bigint", Kind.INT8),
    _BuiltIn(21, 1005, "int2", "smallint", Kind.INT2),
    _BuiltIn(22, 1006, "int2vector", "int2vector", Kind.TEXT),
    _BuiltIn(23, 1007, "int4", "integer", Kind.INT4),
    _BuiltIn(24, 1008, "regproc", "regproc", Kind.TEXT),
    _BuiltIn(25, 1009, "text", "text", Kind.TEXT),
    _BuiltIn(26, 1028, "oid", "oid", Kind.OID),
    _BuiltIn(27, 1010, "tid", "tid", Kind.TEXT),
    _BuiltIn(28, 1011, "xid", "xid", Kind.TEXT),
    _BuiltIn(29, 1012, "cid", "cid", Kind.TEXT),
    _BuiltIn(30, 1013, "oidvector", "oidvector", Kind.TEXT),
    _BuiltIn(114, 199, "json", "json", Kind.JSON),
    _BuiltIn(142, 143, "xml", "xml", Kind.TEXT),
    _BuiltIn(600, 1017, "point", "point", Kind.GEOMETRY),
    _BuiltIn(601, 1018, "lseg", "lseg", Kind.GEOMETRY),
    _BuiltIn(602, 1019, "path", "path", Kind.GEOMETRY),
    _BuiltIn(603, 1020, "box", "box", Kind.GEOMETRY),
    _BuiltIn(604, 1027, "polygon", "polygon", Kind.GEOMETRY),
    _BuiltIn(628, 629, "line", "line", Kind.GEOMETRY),
    _BuiltIn(650, 651, "cidr", "cidr", Kind.NETWORK),
    _BuiltIn(700, 1021, "float4", "real", Kind.FLOAT4),
    _BuiltIn(701, 1022, "float8", "double precision", Kind.FLOAT8),
    _BuiltIn(718, 719, "circle", "circle", Kind.GEOMETRY),
    _BuiltIn(774, 775, "macaddr8", "macaddr8", Kind.NETWORK),
    _BuiltIn(790, 791, "money", "money", Kind.MONEY),
    _BuiltIn(829, 1040, "macaddr", "macaddr", Kind.NETWORK),
    _BuiltIn(869, 1041, "inet", "inet", Kind.NETWORK),
    _BuiltIn(1033, 1034, "aclitem", "aclitem", Kind.TEXT),
    _BuiltIn(1042, 1014, "bpchar", "character", Kind.TEXT),
    _BuiltIn(1043, 1015, "varchar", "character varying", Kind.TEXT),
    _BuiltIn(1082, 1182, "date", "date", Kind.DATE),
    _BuiltIn(1083, 1183, "time", "time without time zone", Kind.TIME),
    _BuiltIn(1114, 1115, "timestamp", "timestamp without time zone", Kind.TIMESTAMP),
    _BuiltIn(1184, 1185, "timestamptz", "timestamp with time zone", Kind.TIMESTAMPTZ),
    _BuiltIn(1186, 1187, "interval", "interval", Kind.INTERVAL),
    _BuiltIn(1266, 1270, "timetz", "time with time zone", Kind.TIMETZ),
    _BuiltIn(1560, 1561, "bit", "bit", Kind.BITS),
    _BuiltIn(1562, 1563, "varbit", "bit varying", Kind.BITS),
    _BuiltIn(1700, 1231, "numeric", "numeric", Kind.NUMERIC),
    _BuiltIn(1790, 2201, "refcursor", "refcursor", Kind.TEXT),
    _BuiltIn(2202, 2207, "regprocedure", "regprocedure", Kind.TEXT),
    _BuiltIn(2203, 2208, "regoper", "regoper", Kind.TEXT),
    _BuiltIn(2204, 2209, "regoperator", "regoperator", Kind.TEXT),
    _BuiltIn(2205, 2210, "regclass", "regclass", Kind.TEXT),
    _BuiltIn(2206, 2211, "regtype", "regtype", Kind.TEXT),
    _BuiltIn(2950, 2951, "uuid", "uuid", Kind.UUID),
    _BuiltIn(2970, 2949, "txid_snapshot", "txid_snapshot", Kind.TEXT),
    _BuiltIn(3220, 3221, "pg_lsn", "pg_lsn", Kind.LSN),
    _BuiltIn(3614, 3643, "tsvector", "tsvector", Kind.SEARCH),
    _BuiltIn(3615, 3645, "tsquery", "tsquery", Kind.SEARCH),
    _BuiltIn(3642, 3644, "gtsvector", "gtsvector", Kind.SEARCH),
    _BuiltIn(3734, 3735, "regconfig", "regconfig", Kind.TEXT),
    _BuiltIn(3769, 3770, "regdictionary", "regdictionary", Kind.TEXT),
    _BuiltIn(3802, 3807, "jsonb", "jsonb", Kind.JSONB),
    _BuiltIn(3904, 3905, "int4range", "int4range", Kind.RANGE),
    _BuiltIn(3906, 3907, "numrange", "numrange", Kind.RANGE),
    _BuiltIn(3908, 3909, "tsrange", "tsrange", Kind.RANGE),
    _BuiltIn(3910, 3911, "tstzrange", "tstzrange", Kind.RANGE),
    _BuiltIn(3912, 3913, "daterange", "daterange", Kind.RANGE),
    _BuiltIn(3926, 3927, "int8range", "int8range", Kind.RANGE),
    _BuiltIn(4072, 4073, "jsonpath", "jsonpath", Kind.TEXT),
    _BuiltIn(4089, 4090, "regnamespace", "regnamespace", Kind.TEXT),
    _BuiltIn(4096, 4097, "regrole", "regrole", Kind.TEXT),
    _BuiltIn(4191, 4192, "regcollation", "regcollation", Kind.TEXT),
    _BuiltIn(4451, 6150, "int4multirange", "int4multirange", Kind.RANGE),
    _BuiltIn(4532, 6151, "nummultirange", "nummultirange", Kind.RANGE),
    _BuiltIn(4533, 6152, "tsmultirange", "tsmultirange", Kind.RANGE),
    _BuiltIn(4534, 6153, "tstzmultirange", "tstzmultirange", Kind.RANGE),
    _BuiltIn(4535, 6155, "datemultirange", "datemultirange", Kind.RANGE),
    _BuiltIn(4536, 6157, "int8multirange", "int8multirange", Kind.RANGE),
    _BuiltIn(5038, 5039, "pg_snapshot", "pg_snapshot", Kind.TEXT),
    _BuiltIn(5069, 271, "xid8", "xid8", Kind.TEXT),
)
_BY_OID = {row.oid: row for row in _BUILT_IN}
_BY_ARRAY_OID = {row.array_oid: row for row in _BUILT_IN}
_BY_NAME = {row.name: row for row in _BUILT_IN}
_ARRAY_NAMES = {f"_{row.name}": row for row in _BUILT_IN}
_EXTENSIONS = {"hstore": Kind.HSTORE, "vector": Kind.VECTOR, "halfvec": Kind.VECTOR}
_LIMITED = ("vector", "halfvec", "sparsevec")
_SYSTEM = ("", "pg_catalog")

_TEXT = Type(kind=Kind.TEXT)


def resolve(oid: int, modifier: int, types: Mapping[int, TypeName]) -> Type:
    """What a column with this type oid and modifier holds.

    >>> resolve(1700, (12 << 16 | 2) + 4, {})
    Type(kind=<Kind.NUMERIC: 'numeric'>, precision=12, scale=2, element=None, delimiter=',')
    >>> resolve(1007, -1, {}).element
    Type(kind=<Kind.INT4: 'int4'>, precision=None, scale=0, element=None, delimiter=',')
    """
    named = types.get(oid)
    return _resolve(oid, modifier, named)


@lru_cache(maxsize=4096)
def _resolve(oid: int, modifier: int, named: TypeName | None) -> Type:
    if row := _element_of(oid, named):
        return Type(kind=Kind.ARRAY, element=_scalar(row, modifier))
    if row := _built_in(oid, named):
        return _scalar(row, modifier)
    if named is None:
        return _TEXT
    if kind := _EXTENSIONS.get(named.name):
        return Type(kind=kind)
    if named.name.startswith("_"):
        element = _EXTENSIONS.get(named.name[1:], Kind.TEXT)
        return Type(kind=Kind.ARRAY, element=Type(kind=element))
    return _TEXT


def _built_in(oid: int, named: TypeName | None) -> _BuiltIn | None:
    """The built-in type of an oid, or the built-in base type of a domain."""
    row = _BY_OID.get(oid)
    if row is None and named is not None and named.namespace in _SYSTEM:
        row = _BY_NAME.get(named.name)
    return row


def _element_of(oid: int, named: TypeName | None) -> _BuiltIn | None:
    """The element type of a built-in array type, or of a domain over one."""
    row = _BY_ARRAY_OID.get(oid)
    if row is None and named is not None and named.namespace in _SYSTEM:
        row = _ARRAY_NAMES.get(named.name)
    return row


def _scalar(row: _BuiltIn, modifier: int) -> Type:
    if row.kind is Kind.NUMERIC and modifier >= 0:
        precision, scale = _digits(modifier)
        return Type(kind=Kind.NUMERIC, precision=precision, scale=scale)
    return Type(kind=row.kind, delimiter=";" if row.name == "box" else ",")


def _digits(modifier: int) -> tuple[int, int]:
    """Precision and scale of a numeric; the scale has 11 bits and may be negative."""
    packed = modifier - 4
    return packed >> 16 & 0xFFFF, ((packed & 0x7FF) ^ 0x400) - 0x400


def catalog_name(oid: int, types: Mapping[int, TypeName]) -> str:
    """The type's name in `pg_type`; `text` for an unknown type.

    >>> catalog_name(23, {}), catalog_name(1007, {}), catalog_name(99999, {})
    ('int4', '_int4', 'text')
    """
    named = types.get(oid)
    if row := _element_of(oid, named):
        return f"_{row.name}"
    if row := _built_in(oid, named):
        return row.name
    return named.name if named is not None else "text"


def type_name(oid: int, modifier: int, types: Mapping[int, TypeName]) -> str:
    """The type in SQL, as PostgreSQL's `format_type` writes it.

    >>> type_name(1184, 3, {})
    'timestamp(3) with time zone'
    >>> type_name(1015, 24, {})
    'character varying(20)[]'
    """
    named = types.get(oid)
    if row := _element_of(oid, named):
        return _sql_name(row, modifier) + "[]"
    if row := _built_in(oid, named):
        return _sql_name(row, modifier)
    if named is None:
        return f"type {oid}"
    array = named.name.startswith("_")
    plain = named.name[1:] if array else named.name
    limit = f"({modifier})" if plain in _LIMITED and modifier >= 0 else ""
    schema = (
        "" if named.namespace in ("", "pg_catalog", "public") else f"{_ident(named.namespace)}."
    )
    return f"{schema}{_ident(plain)}{limit}{'[]' if array else ''}"


def _ident(name: str) -> str:
    plain = name.isascii() and name.isidentifier() and name == name.lower()
    return name if plain else '"' + name.replace('"', '""') + '"'


_UNLIMITED = {"bpchar": "bpchar", "bit": '"bit"'}
_INTERVAL_FIELDS = {
    1 << 2: " year",
    1 << 1: " month",
    1 << 3: " day",
    1 << 10: " hour",
    1 << 11: " minute",
    1 << 12: " second",
    1 << 2 | 1 << 1: " year to month",
    1 << 3 | 1 << 10: " day to hour",
    1 << 3 | 1 << 10 | 1 << 11: " day to minute",
    1 << 3 | 1 << 10 | 1 << 11 | 1 << 12: " day to second",
    1 << 10 | 1 << 11: " hour to minute",
    1 << 10 | 1 << 11 | 1 << 12: " hour to second",
    1 << 11 | 1 << 12: " minute to second",
}


def _sql_name(row: _BuiltIn, modifier: int) -> str:
    if modifier < 0:
        return _UNLIMITED.get(row.name, row.sql)
    match row.name:
        case "numeric":
            precision, scale = _digits(modifier)
            name = f"numeric({precision},{scale})"
        case "varchar" | "bpchar":
            name = f"{row.sql}({modifier - 4})"
        case "bit" | "varbit":
            name = f"{row.sql}({modifier})"
        case "time" | "timetz" | "timestamp" | "timestamptz":
            name = row.sql.replace(" ", f"({modifier}) ", 1)
        case "interval":
            fields = _INTERVAL_FIELDS.get(modifier >> 16 & 0x7FFF, "")
            precision = modifier & 0xFFFF
            name = f"interval{fields}" + (f"({precision})" if precision != 0xFFFF else "")
        case _:
            name = row.sql
    return name
