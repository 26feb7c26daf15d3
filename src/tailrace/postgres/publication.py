"""The publication: which tables, columns, rows and operations PostgreSQL sends.

Reads the publication from the catalogs and creates it. It must exist before the slot: changes older
than the publication cannot be decoded with it. `FOR ALL TABLES` is created only on request, because
UPDATE and DELETE then fail on every table without a replica identity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg

from tailrace.errors import ConfigError
from tailrace.postgres.catalog import PUBLISHED_TABLES
from tailrace.postgres.connection import translate_error
from tailrace.postgres.names import TableName, quote_ident

if TYPE_CHECKING:
    from collections.abc import Sequence

    from psycopg import Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedTable:
    """A table of a publication. `columns` and `row_filter` are None where it has none."""

    table: TableName
    columns: tuple[str, ...] | None = None
    row_filter: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationState:
    """A publication as the catalogs describe it."""

    name: str
    all_tables: bool
    insert: bool
    update: bool
    delete: bool
    truncate: bool
    via_root: bool
    generated_columns: bool
    tables: tuple[PublishedTable, ...]

    @property
    def unpublished_operations(self) -> tuple[str, ...]:
        """The operations that are not published."""
        operations = ("insert", "update", "delete", "truncate")
        return tuple(name for name in operations if not getattr(self, name))


def read_publication(connection: Connection, name: str) -> PublicationState | None:
    """The publication in the catalogs; None if it does not exist."""
    try:
        row = connection.execute(_READ, (name,)).fetchone()
        tables = connection.execute(_READ_TABLES, (name,)).fetchall()
    except psycopg.Error as error:
        raise translate_error(connection, error) from error
    if row is None:
        return None
    return PublicationState(
        name=name,
        all_tables=row[0],
        insert=row[1],
        update=row[2],
        delete=row[3],
        truncate=row[4],
        via_root=row[5],
        generated_columns=row[6] == "s",
        tables=tuple(
            PublishedTable(
                table=TableName(namespace, table),
                columns=tuple(columns) if columns is not None else None,
                row_filter=row_filter,
            )
            for namespace, table, columns, row_filter in tables
        ),
    )


# Columns that only newer servers have are read through JSON: generated columns from 18, column
# lists and row filters from 15.
_READ = """
SELECT puballtables, pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot,
       to_jsonb(p) ->> 'pubgencols'
FROM pg_publication p WHERE pubname = %s
"""
_READ_TABLES = f"""
SELECT t.schemaname, t.tablename,
       CASE WHEN to_jsonb(r) ->> 'prattrs' IS NOT NULL THEN to_jsonb(t) -> 'attnames' END,
       to_jsonb(t) ->> 'rowfilter'
{PUBLISHED_TABLES}
JOIN pg_publication p ON p.pubname = t.pubname
LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid
WHERE t.pubname = %s
ORDER BY 1, 2
"""


def create_publication(
    connection: Connection,
    name: str,
    *,
    tables: Sequence[TableName] = (),
    all_tables: bool = False,
    via_root: bool = True,
) -> PublicationState:
    """Create the publication for these tables, or for all tables."""
    statement = publication_sql(name, tables=tables, all_tables=all_tables, via_root=via_root)
    try:
        connection.execute(statement.encode())
    except psycopg.Error as error:
        raise translate_error(connection, error) from error
    state = read_publication(connection, name)
    assert state is not None
    return state


def publication_sql(
    name: str,
    *,
    tables: Sequence[TableName] = (),
    all_tables: bool = False,
    via_root: bool = True,
) -> str:
    """The CREATE PUBLICATION statement, without its semicolon."""
    if bool(tables) == all_tables:
        raise ConfigError(
            "either tables or --all-tables must be given, and not both",
            hint="tailrace init --table public.orders --table public.customers",
        )
    what = "ALL TABLES" if all_tables else "TABLE " + ", ".join(table.quoted for table in tables)
    root = str(via_root).lower()
    return (
        f"CREATE PUBLICATION {quote_ident(name)} FOR {what} "
        f"WITH (publish_via_partition_root = {root})"
    )


def addition_sql(
    name: str, table: TableName, *, columns: Sequence[str] = (), where: str = ""
) -> str:
    """The statement that adds a table, without its semicolon."""
    listed = f" ({', '.join(quote_ident(column) for column in columns)})" if columns else ""
    rows = f" WHERE ({where})" if where else ""
    return f"ALTER PUBLICATION {quote_ident(name)} ADD TABLE {table.quoted}{listed}{rows}"


def removal_sql(name: str, table: TableName) -> str:
    """The statement that removes a table, without its semicolon."""
    return f"ALTER PUBLICATION {quote_ident(name)} DROP TABLE {table.quoted}"
