"""Target tables as they are: columns, types, and the key that rows are found by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tailrace.errors import SinkRefusedError
from tailrace.postgres.names import quote_ident

if TYPE_CHECKING:
    from tailrace.postgres.names import TableName
    from tailrace.sinks.postgres.session import Session

    Kind = Literal["", "bytea", "hstore"]

_FIND = """
SELECT c.oid::bigint FROM pg_catalog.pg_class c
WHERE c.oid = to_regclass(%s) AND c.relkind IN ('r', 'p')
"""
_COLUMNS = """
WITH RECURSIVE types AS (
    SELECT a.attnum, t.oid, t.typtype, t.typbasetype, t.typname, t.typcategory, t.typelem
    FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
    WHERE a.attrelid = %(oid)s AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT b.attnum, t.oid, t.typtype, t.typbasetype, t.typname, t.typcategory, t.typelem
    FROM types b JOIN pg_catalog.pg_type t ON t.oid = b.typbasetype WHERE b.typtype = 'd'
)
SELECT a.attname, format_type(a.atttypid, a.atttypmod), b.typname,
    CASE b.typcategory WHEN 'A' THEN e.typname END,
    a.attgenerated = '', a.attgenerated = '' AND a.attidentity <> 'a'
FROM pg_catalog.pg_attribute a
JOIN types b ON b.attnum = a.attnum AND b.typtype <> 'd'
LEFT JOIN pg_catalog.pg_type e ON e.oid = b.typelem
WHERE a.attrelid = %(oid)s AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
"""
_KEY = """
SELECT a.attname, format('OPERATOR(%%I.%%s)', n.nspname, o.oprname)
FROM pg_catalog.pg_index x
CROSS JOIN LATERAL unnest(x.indkey::int2[], x.indclass::oid[]) WITH ORDINALITY k (attnum, class, at)
JOIN pg_catalog.pg_attribute a ON a.attrelid = x.indrelid AND a.attnum = k.attnum
JOIN pg_catalog.pg_opclass c ON c.oid = k.class
JOIN pg_catalog.pg_amop p ON p.amopfamily = c.opcfamily AND p.amoplefttype = c.opcintype
    AND p.amoprighttype = c.opcintype AND p.amopstrategy = 3 AND p.amoppurpose = 's'
JOIN pg_catalog.pg_operator o ON o.oid = p.amopopr
JOIN pg_catalog.pg_namespace n ON n.oid = o.oprnamespace
WHERE x.indrelid = %(oid)s AND x.indisprimary AND x.indimmediate AND NOT x.indisexclusion
ORDER BY k.at
"""
"""The columns of the primary key with the operator that its index uses for equality, which the
search path may not find."""
_UNSUPPORTED = ("bytea", "hstore")
"""Elements of arrays whose JSON PostgreSQL would read as something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a target table."""

    name: str
    type: str
    """In SQL, with its schema."""
    kind: Kind
    """The types whose JSON must be converted before PostgreSQL reads it."""
    written: bool
    """Whether INSERT may name it: it is not generated."""
    updated: bool
    """Whether UPDATE may name it: neither generated nor an identity that is always generated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A target table."""

    table: TableName
    oid: int
    columns: tuple[Column, ...]
    key: tuple[tuple[Column, str], ...]
    """The columns of the primary key, each with its operator for equality."""

    @property
    def names(self) -> set[str]:
        """The names of all columns."""
        return {column.name for column in self.columns}


def describe(session: Session, table: TableName) -> Target:
    """A target table, in the open transaction; `SinkRefusedError` if it cannot be one."""
    row = session.run(_FIND, [table.quoted]).fetchone()
    if row is None:
        raise SinkRefusedError(
            f"target table {table} does not exist",
            hint=f"Create {table.quoted} in the target database, or exclude it with `tables` of "
            "the pipeline.",
        )
    oid = {"oid": row[0]}
    # format_type omits the schema of types that the search path finds.
    saved = session.run("SELECT current_setting('search_path')").fetchone()
    assert saved is not None
    session.run("SELECT set_config('search_path', 'pg_catalog', true)")
    columns = {
        name: _column(table, name, type_, base, element, written=written, updated=updated)
        for name, type_, base, element, written, updated in session.run(_COLUMNS, oid)
    }
    session.run("SELECT set_config('search_path', %s, true)", saved)
    key = tuple((columns[name], operator) for name, operator in session.run(_KEY, oid))
    if not key:
        raise SinkRefusedError(
            f"target table {table} has no primary key, or a deferrable one",
            hint=f"ALTER TABLE {table.quoted} ADD PRIMARY KEY (...);",
        )
    return Target(table=table, oid=oid["oid"], columns=tuple(columns.values()), key=key)


def _column(
    table: TableName,
    name: str,
    type_: str,
    base: str,
    element: str | None,
    *,
    written: bool,
    updated: bool,
) -> Column:
    if element in _UNSUPPORTED:
        raise SinkRefusedError(
            f"column {quote_ident(name)} of target table {table} is an array of {element}, which "
            "mode `tables` does not support",
            hint="Leave the column out with `select`, and drop it from the target table.",
        )
    kind: Kind = "bytea" if base == "bytea" else "hstore" if base == "hstore" else ""
    return Column(name=name, type=type_, kind=kind, written=written, updated=updated)
