"""Tables as the catalogs describe them today: identity, keys, columns, privileges.

For advice only. The stream is decoded with its own Relation messages, never with this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg
from psycopg.rows import class_row

from tailrace.postgres.connection import translate_error
from tailrace.postgres.publication import TableName

if TYPE_CHECKING:
    from collections.abc import Sequence

    from psycopg import Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """One table. For a partitioned one, `unidentified` and `toasted` speak of its leaves.

    `unidentified` holds the quoted names of the tables whose rows PostgreSQL can not identify:
    once updates are published, the application's own UPDATE fails on them.
    """

    namespace: str
    name: str
    partitioned: bool
    partition: bool
    replica_identity: str
    row_security: bool
    unidentified: list[str]
    toasted: bool
    primary_key: list[str]
    identity: list[str]
    columns: list[str]
    stored: list[str]
    virtual: list[str]
    money: list[str]
    selectable: bool
    schema_usable: bool

    @property
    def table(self) -> TableName:
        """Its name."""
        return TableName(self.namespace, self.name)


def read_published(connection: Connection, publication: str) -> list[TableState]:
    """The tables of a publication, as it would send them."""
    rows = connection.execute(_PUBLISHED, (publication,)).fetchall()
    return _read(connection, [row[0] for row in rows])


def read_named(connection: Connection, tables: Sequence[TableName]) -> list[TableState]:
    """The tables of these names; those that do not exist are left out."""
    names = [table.namespace for table in tables], [table.name for table in tables]
    rows = connection.execute(_NAMED, names).fetchall()
    return _read(connection, [row[0] for row in rows])


def read_all(connection: Connection) -> list[TableState]:
    """Every table that a publication for all tables would hold."""
    return _read(connection, [row[0] for row in connection.execute(_ALL).fetchall()])


def _read(connection: Connection, oids: list[int]) -> list[TableState]:
    with connection.cursor(row_factory=class_row(TableState)) as cursor:
        try:
            return cursor.execute(_TABLES, {"oids": oids}).fetchall()
        except psycopg.Error as error:
            raise translate_error(connection, error) from error


_PUBLISHED = """
SELECT c.oid FROM pg_publication_tables t
JOIN pg_namespace n ON n.nspname = t.schemaname
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
WHERE t.pubname = %s
"""

_NAMED = """
SELECT c.oid FROM unnest(%s::text[], %s::text[]) wanted (namespace, name)
JOIN pg_namespace n ON n.nspname = wanted.namespace
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = wanted.name
"""

_ALL = """
SELECT oid FROM pg_class
WHERE relkind IN ('r', 'p') AND relpersistence = 'p' AND oid >= 16384 AND NOT relispartition
"""

_TABLES = """
WITH leaves AS (
    SELECT oid AS root, oid AS relid FROM pg_class WHERE oid = ANY(%(oids)s) AND relkind = 'r'
    UNION
    SELECT c.oid, tree.relid FROM pg_class c, pg_partition_tree(c.oid) tree
    WHERE c.oid = ANY(%(oids)s) AND tree.isleaf
)
SELECT n.nspname AS namespace, c.relname AS name, c.relkind = 'p' AS partitioned,
       c.relispartition AS partition,
       c.relreplident::text AS replica_identity, c.relrowsecurity AS row_security,
       ARRAY(SELECT format('%%I.%%I', ln.nspname, l.relname)
             FROM leaves JOIN pg_class l ON l.oid = leaves.relid
             JOIN pg_namespace ln ON ln.oid = l.relnamespace
             WHERE leaves.root = c.oid AND l.relreplident <> 'f' AND NOT EXISTS (
                 SELECT FROM pg_index i WHERE i.indrelid = l.oid AND i.indislive
                 AND CASE l.relreplident WHEN 'd' THEN i.indisprimary
                                         WHEN 'i' THEN i.indisreplident END)
             ORDER BY 1) AS unidentified,
       EXISTS (SELECT FROM leaves JOIN pg_class l ON l.oid = leaves.relid
               WHERE leaves.root = c.oid AND l.reltoastrelid <> 0
               AND pg_relation_size(l.reltoastrelid) > 0) AS toasted,
       ARRAY(SELECT a.attname::text FROM pg_index i, unnest(i.indkey) WITH ORDINALITY k (n, at)
             JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.n
             WHERE i.indrelid = c.oid AND i.indisprimary ORDER BY k.at) AS primary_key,
       ARRAY(SELECT a.attname::text FROM pg_index i, unnest(i.indkey) WITH ORDINALITY k (n, at)
             JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.n
             WHERE i.indrelid = c.oid AND CASE c.relreplident WHEN 'd' THEN i.indisprimary
                                               WHEN 'i' THEN i.indisreplident END
             ORDER BY k.at) AS identity,
       cols.columns, cols.stored, cols.virtual, cols.money,
       has_any_column_privilege(c.oid, 'SELECT') AS selectable,
       has_schema_privilege(n.oid, 'USAGE') AS schema_usable
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN LATERAL (
    SELECT coalesce(array_agg(attname::text ORDER BY attnum), '{}') AS columns,
           coalesce(array_agg(attname::text ORDER BY attnum)
                    FILTER (WHERE attgenerated = 's'), '{}') AS stored,
           coalesce(array_agg(attname::text ORDER BY attnum)
                    FILTER (WHERE attgenerated = 'v'), '{}') AS virtual,
           coalesce(array_agg(attname::text ORDER BY attnum)
                    FILTER (WHERE atttypid = 'money'::regtype), '{}') AS money
    FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped
) cols
WHERE c.oid = ANY(%(oids)s)
ORDER BY 1, 2
"""
