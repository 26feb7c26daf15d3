"""The catalog queries of the source, each written once.

Fragments are for components that build a statement of their own: one statement sees one state of
all catalogs, so facts that must agree are read together. Functions answer a whole question. The
aliases are the same everywhere: `n` is pg_namespace, `c` pg_class, `a` pg_attribute, `i` pg_index,
`t` pg_publication_tables.

For advice and for snapshots. The stream is decoded with its own Relation messages, never with this.
"""

# ruff: noqa: S608 - the fragments are constants of this module

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg

from tailrace.position import Lsn
from tailrace.postgres.connection import translate_error
from tailrace.schema import Column, Relation, ReplicaIdentity, TypeName

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from psycopg import Connection

    from tailrace.postgres.names import TableName

LOCK_TIMEOUT = "SET lock_timeout TO '2s'"
"""For sessions that only look: catalog functions such as pg_get_publication_tables lock the tables
they describe. A look that would wait for an ALTER TABLE fails and is repeated later."""

CURRENT_LSN = """\
(SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
             ELSE pg_current_wal_insert_lsn() END)::text"""
"""The end of the WAL, on a primary and on a standby. Everything that the statement sees was
committed before it."""

_TIMELINE = """
SELECT CASE WHEN pg_is_in_recovery() THEN NULL
            ELSE ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int END
"""

PUBLISHED_TABLES = """
FROM pg_catalog.pg_publication_tables t
JOIN pg_catalog.pg_namespace n ON n.nspname = t.schemaname
JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
"""
"""The tables of publications; `WHERE t.pubname = ...` chooses one publication."""

NAMED_TABLES = """
FROM unnest(%s::text[], %s::text[]) wanted (namespace, name)
JOIN pg_catalog.pg_namespace n ON n.nspname = wanted.namespace
JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = wanted.name
"""
"""The tables with these schemas and names. Takes two arrays of the same length."""

TABLE_BY_NAME = """
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace AND n.nspname = %s AND c.relname = %s
"""
"""One table. Takes its schema and its name."""

KEY_COLUMNS = """
FROM pg_catalog.pg_index i
CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, place)
JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
WHERE i.indrelid = c.oid AND k.place <= i.indnkeyatts
  AND CASE c.relreplident WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END
"""
"""The columns that identify a row for a reader, for a subquery over `c`: those of the index chosen
as replica identity, else the primary key, also under REPLICA IDENTITY FULL. `k.place` is the order
in the index."""


def identity_index(table: str = "c", index: str = "i") -> str:
    """The condition that an index is the replica identity of a table.

    DEFAULT uses the primary key and USING INDEX the chosen index. FULL and NOTHING have none.
    """
    return (
        f"CASE {table}.relreplident WHEN 'd' THEN {index}.indisprimary "
        f"WHEN 'i' THEN {index}.indisreplident END"
    )


def read_lsn(connection: Connection) -> Lsn:
    """The end of the WAL now."""
    return Lsn.parse(str(_rows(connection, f"SELECT {CURRENT_LSN}")[0][0]))


def read_timeline(connection: Connection) -> int | None:
    """The timeline of a primary; None for a standby."""
    timeline: int | None = _rows(connection, _TIMELINE)[0][0]
    return timeline


def existing_relations(connection: Connection, oids: Collection[int]) -> set[int]:
    """Those of the oids that are tables now."""
    query = "SELECT oid FROM pg_catalog.pg_class WHERE oid = ANY(%s) AND relkind IN ('r', 'p')"
    return {oid for (oid,) in _rows(connection, query, (list(oids),))}


def publication_exists(connection: Connection, name: str) -> bool:
    """Whether the publication exists."""
    query = "SELECT FROM pg_catalog.pg_publication WHERE pubname = %s"
    return bool(_rows(connection, query, (name,)))


def read_key(connection: Connection, oid: int) -> tuple[str, ...]:
    """The columns that identify a row, in the order of their index. See `KEY_COLUMNS`."""
    rows = _rows(connection, _KEY, (oid,))
    return tuple(rows[0][0]) if rows else ()


def read_relation(connection: Connection, name: TableName) -> Relation | None:
    """A table, view or foreign table as the stream would describe it, without generated columns."""
    rows = _rows(connection, _RELATION, (name.namespace, name.name))
    if not rows:
        return None
    oid, identity, columns = rows[0]
    return Relation(
        oid=oid,
        namespace=name.namespace,
        name=name.name,
        replica_identity=ReplicaIdentity(identity),
        columns=tuple(
            Column(name=column, type_oid=kind, type_modifier=modifier, key=key)
            for column, kind, modifier, key in columns
        ),
    )


def read_types(connection: Connection, relations: Iterable[Relation]) -> dict[int, TypeName]:
    """The types that these relations use and that are not built in, by oid, in one query."""
    oids = {column.type_oid for relation in relations for column in relation.columns}
    rows = _rows(connection, _TYPES, (sorted(oids),)) if oids else []
    return {oid: TypeName(oid=oid, namespace=space, name=name) for oid, space, name in rows}


def _rows(connection: Connection, query: str, values: tuple[object, ...] = ()) -> list[tuple]:  # type: ignore[type-arg]
    try:
        return connection.execute(query.encode(), values).fetchall()
    except psycopg.Error as error:
        raise translate_error(connection, error) from error


_KEY = f"""
SELECT ARRAY(SELECT a.attname::text {KEY_COLUMNS} ORDER BY k.place)
FROM pg_catalog.pg_class c WHERE c.oid = %s
"""

_RELATION = f"""
SELECT c.oid::int8, c.relreplident::text,
       coalesce(jsonb_agg(jsonb_build_array(
           a.attname, a.atttypid::int8, a.atttypmod,
           c.relreplident = 'f' OR a.attnum = ANY(coalesce(i.indkey::int2[], '{{}}'))
       ) ORDER BY a.attnum) FILTER (WHERE a.attnum IS NOT NULL), '[]')
{TABLE_BY_NAME}
LEFT JOIN pg_catalog.pg_attribute a
       ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
LEFT JOIN pg_catalog.pg_index i
       ON i.indrelid = c.oid AND i.indislive AND {identity_index()}
WHERE c.relkind IN ('r', 'p', 'm', 'v', 'f')
GROUP BY c.oid
"""

# As in the stream, a domain has the name of its base type. 16384 is the first oid that PostgreSQL
# gives to objects of users.
_TYPES = """
WITH RECURSIVE base(oid, kind) AS (
    SELECT t.oid, t.oid FROM pg_catalog.pg_type t WHERE t.oid = ANY(%s::oid[]) AND t.oid >= 16384
    UNION ALL
    SELECT base.oid, t.typbasetype FROM base JOIN pg_catalog.pg_type t ON t.oid = base.kind
    WHERE t.typtype = 'd'
)
SELECT base.oid::int8, n.nspname, t.typname
FROM base JOIN pg_catalog.pg_type t ON t.oid = base.kind AND t.typtype <> 'd'
JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
"""
