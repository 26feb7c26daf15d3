"""Tables by the source's catalogs, and their stretches of pages."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

import psycopg

from tailrace.errors import ConfigError
from tailrace.postgres.catalog import read_relation, read_types
from tailrace.postgres.connection import translate_error
from tailrace.postgres.names import TableName
from tailrace.snapshot.table import Stretch, Table

if TYPE_CHECKING:
    from psycopg import Connection

    from tailrace.schema import Relation


def read_names(connection: Connection) -> list[TableName]:
    """The names of all user tables, views and foreign tables."""
    try:
        rows = connection.execute(_NAMES).fetchall()
    except psycopg.Error as refusal:
        raise translate_error(connection, refusal) from refusal
    return [TableName(namespace, name) for namespace, name in rows]


def read_table(connection: Connection, name: TableName) -> Table:
    """The table as the catalogs describe it to this session."""
    relation = read_relation(connection, name)
    if relation is None:
        raise ConfigError(f"there is no table {name}", hint="Write schema.table, quoted as in SQL.")
    return described(connection, relation)


def described(connection: Connection, relation: Relation) -> Table:
    """A relation with the types it uses."""
    return Table(relation=relation, types=read_types(connection, [relation]))


def stretches(
    connection: Connection, table: Table, *, max_bytes: int, together: int = 1
) -> list[Stretch]:
    """The table in stretches of at most `max_bytes`, of which `together` are read in parallel."""
    try:
        leaves = connection.execute(_LEAVES, {"oid": table.relation.oid}).fetchall()
    except psycopg.Error as refusal:
        raise translate_error(connection, refusal) from refusal
    # PostgreSQL 14 added TID range scans: before, each stretch would scan the whole table.
    ranges = connection.info.server_version >= 140000
    result = []
    for namespace, name, pages, page_bytes, has_pages in leaves:
        leaf = TableName(namespace, name)
        step = _step(pages, max(max_bytes // page_bytes, 1), together)
        firsts = range(0, pages, step) if ranges and has_pages else ()
        if len(firsts) < 2:
            result.append(Stretch(leaf))
            continue
        ends = [*firsts[1:], None]
        result += [Stretch(leaf, first, end) for first, end in zip(firsts, ends, strict=True)]
    return result


def _step(pages: int, max_pages: int, together: int) -> int:
    """Pages per stretch: equal stretches in whole rounds of readers, so that all end together.

    >>> [_step(pages, 10, 4) for pages in (0, 8, 30, 41, 79, 81)]
    [1, 8, 10, 6, 10, 7]
    """
    count = ceil(pages / max_pages)
    if count > together:
        count = ceil(count / together) * together
    return ceil(pages / max(count, 1)) or 1


_NAMES = """
SELECT n.nspname, c.relname
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'm', 'v', 'f')
  AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')
ORDER BY 1, 2
"""

_LEAVES = """
SELECT n.nspname, c.relname, pg_relation_size(c.oid) / current_setting('block_size')::int8,
       current_setting('block_size')::int8, c.relkind IN ('r', 'm')
FROM (SELECT relid FROM pg_partition_tree(%(oid)s) WHERE isleaf
      UNION SELECT %(oid)s WHERE NOT EXISTS (SELECT FROM pg_partition_tree(%(oid)s))) leaf
JOIN pg_catalog.pg_class c ON c.oid = leaf.relid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
ORDER BY 1, 2
"""
