"""The state of tables that `init`, `doctor` and `table add` judge: identity, columns, privileges.

For advice only. The stream is decoded with its own Relation messages, never with this.
"""

# ruff: noqa: S608 - the fragments are constants

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg
from psycopg.rows import class_row

from tailrace.postgres.catalog import NAMED_TABLES, PUBLISHED_TABLES, identity_index
from tailrace.postgres.connection import translate_error
from tailrace.postgres.names import TableName

if TYPE_CHECKING:
    from collections.abc import Sequence

    from psycopg import Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """One table. For a partitioned table, `unidentified` and `toasted` are about its leaves.

    `unidentified` holds the quoted names of the tables without a replica identity: while updates
    are published, the application's own UPDATE fails on them. `identity` holds the columns of the
    replica identity, `stored`, `virtual` and `money` the columns of that kind.
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
        """The name of the table."""
        return TableName(self.namespace, self.name)


def read_published(connection: Connection, publication: str) -> list[TableState]:
    """The tables of a publication: the roots or the partitions, as the publication names them."""
    query = f"SELECT c.oid {PUBLISHED_TABLES} WHERE t.pubname = %s"
    rows = connection.execute(query.encode(), (publication,)).fetchall()
    return _read(connection, [row[0] for row in rows])


def read_named(connection: Connection, tables: Sequence[TableName]) -> list[TableState]:
    """The tables with these names; missing ones are left out."""
    names = [table.namespace for table in tables], [table.name for table in tables]
    rows = connection.execute(f"SELECT c.oid {NAMED_TABLES}".encode(), names).fetchall()
    return _read(connection, [row[0] for row in rows])


def read_all(connection: Connection) -> list[TableState]:
    """Every table that a publication FOR ALL TABLES would publish."""
    return _read(connection, [row[0] for row in connection.execute(_ALL).fetchall()])


def _read(connection: Connection, oids: list[int]) -> list[TableState]:
    with connection.cursor(row_factory=class_row(TableState)) as cursor:
        try:
            return cursor.execute(_TABLES.encode(), {"oids": oids}).fetchall()
        except psycopg.Error as error:
            raise translate_error(connection, error) from error


_ALL = """
SELECT oid FROM pg_class
WHERE relkind IN ('r', 'p') AND relpersistence = 'p' AND oid >= 16384 AND NOT relispartition
"""

_INDEX_COLUMNS = """\
ARRAY(SELECT a.attname::text FROM pg_index i, unnest(i.indkey) WITH ORDINALITY k (n, at)
      JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.n
      WHERE i.indrelid = c.oid AND"""

_TABLES = f"""
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
                 AND {identity_index("l")})
             ORDER BY 1) AS unidentified,
       EXISTS (SELECT FROM leaves JOIN pg_class l ON l.oid = leaves.relid
               WHERE leaves.root = c.oid AND l.reltoastrelid <> 0
               AND pg_relation_size(l.reltoastrelid) > 0) AS toasted,
       {_INDEX_COLUMNS} i.indisprimary ORDER BY k.at) AS primary_key,
       {_INDEX_COLUMNS} {identity_index()} ORDER BY k.at) AS identity,
       cols.columns, cols.stored, cols.virtual, cols.money,
       has_any_column_privilege(c.oid, 'SELECT') AS selectable,
       has_schema_privilege(n.oid, 'USAGE') AS schema_usable
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN LATERAL (
    SELECT coalesce(array_agg(attname::text ORDER BY attnum), '{{}}') AS columns,
           coalesce(array_agg(attname::text ORDER BY attnum)
                    FILTER (WHERE attgenerated = 's'), '{{}}') AS stored,
           coalesce(array_agg(attname::text ORDER BY attnum)
                    FILTER (WHERE attgenerated = 'v'), '{{}}') AS virtual,
           coalesce(array_agg(attname::text ORDER BY attnum)
                    FILTER (WHERE atttypid = 'money'::regtype), '{{}}') AS money
    FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped
) cols
WHERE c.oid = ANY(%(oids)s)
ORDER BY 1, 2
"""
