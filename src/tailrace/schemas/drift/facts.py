"""What the catalogs say of published tables and their partitions.

Every fact shows whether rows were added, removed or rewritten without a row event: files, types,
inheritance, and the transactions that wrote the catalog rows (`stamp`, their `xmin`). The names of
the fields are part of the format on disk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg
from pydantic import TypeAdapter

from tailrace.postgres.catalog import read_lsn
from tailrace.postgres.connection import translate_error

if TYPE_CHECKING:
    from collections.abc import Iterable

    from psycopg import Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A published column. `kind` is the oid of its type; for a domain, that of the base type.

    `missing`: rows older than the column have its default, which only the catalog stores
    (`atthasmissing`). `default` is the oid of the present default.
    """

    number: int
    name: str
    kind: int
    type_name: str
    modifier: int
    missing: bool
    default: int
    stamp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A table that stores rows: a partition, or the table itself.

    `toast` is the oid of its TOAST table. `counted`: `reltuples` is known. `created` and `attached`
    are the transactions that created it and attached it to its parent.
    """

    oid: int
    name: str
    file: int
    tablespace: int
    toast: int
    counted: bool
    stamp: int
    created: int
    attached: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A published table, or one that was published before. `columns` are those published."""

    oid: int
    namespace: str
    name: str
    published: bool
    logged: bool
    row_filter: str | None
    last_number: int
    columns: tuple[Column, ...]
    leaves: tuple[Leaf, ...]

    @property
    def qualified(self) -> str:
        """`schema.table`, for messages."""
        return f"{self.namespace}.{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """One read of the catalogs. Everything in it was written before `lsn`; `position` is the end of
    the log then."""

    source: str
    lsn: str
    position: str = ""
    tables: tuple[Table, ...] = ()

    def by_oid(self) -> dict[int, Table]:
        """The tables by oid."""
        return {table.oid: table for table in self.tables}


_TABLES = TypeAdapter(tuple[Table, ...])


def read_facts(connection: Connection, publication: str, known: Iterable[int] = ()) -> Facts:
    """The present facts, including those of `known` tables that are not published any more."""
    values = {"publication": publication, "known": [*known]}
    try:
        row = connection.execute(_FACTS, values).fetchone()
    except psycopg.Error as error:
        raise translate_error(connection, error) from error
    assert row is not None
    source, lsn, tables = row
    return Facts(source=source, lsn=lsn, tables=_TABLES.validate_python(tables))


def current_lsn(connection: Connection) -> str:
    """The end of the WAL."""
    return str(read_lsn(connection))


def nonempty(connection: Connection, oids: Iterable[int]) -> set[int]:
    """Those of the tables whose file is not empty."""
    try:
        rows = connection.execute(_NONEMPTY, ([*oids],)).fetchall()
    except psycopg.Error as error:
        raise translate_error(connection, error) from error
    return {row[0] for row in rows}


# One statement, so one snapshot of all catalogs. The query walks partition trees by itself, because
# pg_partition_tree locks every member. Columns that only newer servers have are read as JSON.
_FACTS = """
WITH RECURSIVE published AS (
    SELECT c.oid, to_jsonb(t) ->> 'rowfilter' AS row_filter, to_jsonb(t) -> 'attnames' AS names
    FROM pg_publication_tables t
    JOIN pg_namespace n ON n.nspname = t.schemaname
    JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
    WHERE t.pubname = %(publication)s
), watched AS (
    SELECT oid, true AS published, row_filter, names FROM published
    UNION ALL
    SELECT oid, false, NULL, NULL FROM pg_class
    WHERE oid = ANY(%(known)s::int8[]::oid[]) AND oid NOT IN (SELECT oid FROM published)
), tree (root, relid, attached) AS (
    SELECT oid, oid, NULL::xid FROM watched
    UNION ALL
    SELECT tree.root, i.inhrelid, i.xmin
    FROM tree
    JOIN pg_class p ON p.oid = tree.relid AND p.relkind = 'p'
    JOIN pg_inherits i ON i.inhparent = p.oid AND NOT i.inhdetachpending
), leaves AS (
    SELECT tree.root, jsonb_agg(jsonb_build_object(
               'oid', l.oid::int8, 'name', format('%%s.%%s', ln.nspname, l.relname),
               'file', l.relfilenode::int8, 'tablespace', l.reltablespace::int8,
               'toast', l.reltoastrelid::int8, 'counted', l.reltuples >= 0,
               'stamp', l.xmin::text::int8, 'attached', tree.attached::text::int8,
               'created', (SELECT a.xmin::text::int8 FROM pg_attribute a
                           WHERE a.attrelid = l.oid AND a.attname = 'ctid'))
               ORDER BY l.oid) AS leaves
    FROM tree
    JOIN pg_class l ON l.oid = tree.relid AND l.relkind = 'r'
    JOIN pg_namespace ln ON ln.oid = l.relnamespace
    GROUP BY tree.root
), missing AS (
    SELECT DISTINCT tree.root, a.attname AS name
    FROM tree JOIN pg_attribute a ON a.attrelid = tree.relid AND a.atthasmissing
), columns AS (
    SELECT w.oid, jsonb_agg(jsonb_build_object(
               'number', a.attnum, 'name', a.attname,
               'kind', coalesce(nullif(t.typbasetype, 0), t.oid)::int8,
               'type_name', format_type(a.atttypid, a.atttypmod), 'modifier', a.atttypmod,
               'missing', missing.name IS NOT NULL, 'default', coalesce(d.oid::int8, 0),
               'stamp', a.xmin::text::int8)
               ORDER BY a.attnum) AS columns
    FROM watched w
    JOIN pg_attribute a ON a.attrelid = w.oid AND a.attnum > 0 AND NOT a.attisdropped
    JOIN pg_type t ON t.oid = a.atttypid
    LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    LEFT JOIN missing ON missing.root = w.oid AND missing.name = a.attname
    WHERE CASE WHEN w.names IS NULL THEN a.attgenerated = '' ELSE w.names ? a.attname END
    GROUP BY w.oid
)
SELECT (SELECT system_identifier::text FROM pg_control_system()) || '/' || current_database(),
       (SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
                    ELSE pg_current_wal_insert_lsn() END)::text,
       coalesce(jsonb_agg(jsonb_build_object(
           'oid', c.oid::int8, 'namespace', n.nspname, 'name', c.relname,
           'published', w.published, 'logged', c.relpersistence = 'p',
           'row_filter', w.row_filter, 'last_number', c.relnatts,
           'columns', coalesce(columns.columns, '[]'), 'leaves', coalesce(leaves.leaves, '[]'))
           ORDER BY c.oid), '[]')
FROM watched w
JOIN pg_class c ON c.oid = w.oid
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN columns ON columns.oid = w.oid
LEFT JOIN leaves ON leaves.root = w.oid
"""
_NONEMPTY = """
SELECT oid::int8 FROM pg_class
WHERE oid = ANY(%s::int8[]::oid[]) AND relkind = 'r' AND pg_relation_size(oid) > 0
"""
