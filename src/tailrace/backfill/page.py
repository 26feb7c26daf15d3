"""Reads pages of a table in key order, each page in its own transaction.

Short transactions do not hold back vacuum. After a crash, reading resumes after the last key of the
previous page. A table without a key is one page. Where the pages go is not this module's concern:
`tailrace.backfill.filler` writes them to the spool.

The condition of a backfill may come from an HTTP request: it enters a query only as
`tailrace.postgres.condition` has checked it, in a read-only transaction with a time limit.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import psycopg

from tailrace.errors import ConfigError, PostgresRefusedError, PostgresUnreachableError
from tailrace.position import Lsn
from tailrace.postgres.catalog import CURRENT_LSN, read_key
from tailrace.postgres.condition import checked
from tailrace.postgres.connection import VALUES_SQL, translate_error
from tailrace.postgres.names import quote_ident, quote_literal
from tailrace.postgres.publication import read_publication
from tailrace.postgres.relations import read_published
from tailrace.snapshot.catalog import described
from tailrace.snapshot.copy import copy
from tailrace.snapshot.export import oldest_writer
from tailrace.visibility import Visibility

if TYPE_CHECKING:
    from collections.abc import Iterator

    from psycopg import Connection

    from tailrace.decode.group import Image
    from tailrace.postgres.names import TableName
    from tailrace.snapshot.table import Table

_TAKE = f"SELECT pg_current_snapshot()::text, {CURRENT_LSN}, extract(epoch FROM now())::float8"  # noqa: S608 - a constant
_LIMIT = """
SELECT set_config('statement_timeout', %(ms)s::text, false)
WHERE (SELECT setting FROM pg_settings WHERE name = 'statement_timeout')::bigint
      NOT BETWEEN 1 AND %(ms)s
"""
_PARTITIONED = "SELECT relkind = 'p' FROM pg_class WHERE oid = %s"


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSnapshot:
    """What the transaction of a page sees: its snapshot, and the table as published."""

    table: Table
    key: tuple[str, ...]
    partitioned: bool
    condition: str | None
    """The publication's row filter: the stream applies it too."""
    visibility: Visibility
    lsn: Lsn
    taken_at: datetime
    since: datetime | None
    """Every change it does not see was committed after this time; None if that is unknown."""

    def select(self, *, where: str = "", cursor: tuple[str, ...] = (), limit: int = 0) -> str:
        """The query for the rows after a key, in key order."""
        columns = ", ".join(quote_ident(column.name) for column in self.table.relation.columns)
        only = "" if self.partitioned else "ONLY "
        text = f"SELECT {columns} FROM {only}{self.table.name.quoted}"  # noqa: S608 - quoted
        conditions = [f"({self.condition})"] if self.condition else []
        if where := checked(where):
            conditions.append(f"({where})")
        key = ", ".join(map(quote_ident, self.key))
        if cursor:
            conditions.append(f"({key}) > ({', '.join(map(quote_literal, cursor))})")
        if conditions:
            text += f" WHERE {' AND '.join(conditions)}"
        if self.key:
            text += f" ORDER BY {key}"
        return f"{text} LIMIT {limit}" if limit else text


@contextmanager
def snapshot(
    connection: Connection, publication: str, name: TableName, *, timeout_s: int = 0
) -> Iterator[PageSnapshot]:
    """Open a transaction on a published table; it is rolled back at the end.

    `timeout_s` limits each statement; 0 sets no limit. A shorter limit of the role stays.
    """
    reading = False
    try:
        connection.execute(VALUES_SQL)
        if timeout_s:
            connection.execute(_LIMIT, {"ms": timeout_s * 1000})
        since = oldest_writer(connection)
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            # The lock comes before the snapshot: to a snapshot older than a rewrite, the
            # rewritten table looks empty.
            connection.execute(f"LOCK TABLE {name.quoted} IN ACCESS SHARE MODE".encode())
            row = connection.execute(_TAKE).fetchone()
            assert row is not None
            table, condition = _published(connection, publication, name)
            oid = table.relation.oid
            partitioned = connection.execute(_PARTITIONED, (oid,)).fetchone()
            reading = True
            yield PageSnapshot(
                table=table,
                key=_key(connection, table),
                partitioned=partitioned is not None and bool(partitioned[0]),
                condition=condition,
                visibility=Visibility.parse(row[0]),
                lsn=Lsn.parse(row[1]),
                taken_at=datetime.fromtimestamp(row[2], UTC),
                since=since,
            )
        finally:
            if not connection.broken:
                connection.execute("ROLLBACK")
    except (psycopg.Error, PostgresUnreachableError) as error:
        if reading and "statement timeout" in str(error):
            # Not transient: the same query would time out again. A wait for the lock would not.
            raise _timeout(name) from error
        if isinstance(error, PostgresUnreachableError):
            raise
        raise translate_error(connection, error) from error


def _timeout(name: TableName) -> PostgresRefusedError:
    return PostgresRefusedError(
        f"a query on {name} took longer than its statement timeout",
        hint="Raise the pipeline's backfill.statement_timeout_s or the role's statement_timeout, "
        "lower backfill.page_rows, or create an index for the condition.",
    )


def _published(
    connection: Connection, publication: str, name: TableName
) -> tuple[Table, str | None]:
    state = read_publication(connection, publication)
    if state is None:
        raise PostgresRefusedError(f"there is no publication {publication!r}")
    listed = next((each for each in state.tables if each.table == name), None)
    relations = {
        (each.relation.namespace, each.relation.name): each.relation
        for each in read_published(connection, state)
    }
    relation = relations.get((name.namespace, name.name))
    if listed is None or relation is None:
        raise ConfigError(
            f"{name} is not in publication {publication}",
            hint=f"ALTER PUBLICATION {quote_ident(publication)} ADD TABLE {name.quoted};",
        )
    return described(connection, relation), listed.row_filter


def _key(connection: Connection, table: Table) -> tuple[str, ...]:
    """The columns that identify a row: the replica identity index, or else the primary key.

    Empty if the publication does not send all of them.
    """
    key = read_key(connection, table.relation.oid)
    published = {column.name for column in table.relation.columns}
    return key if published.issuperset(key) else ()


def estimate(connection: Connection, snapshot: PageSnapshot, where: str) -> int:
    """The planner's estimate of the number of rows."""
    query = f"EXPLAIN (FORMAT json) {snapshot.select(where=where)}"
    row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return int(row[0][0]["Plan"]["Plan Rows"])


def check(connection: Connection, snapshot: PageSnapshot, where: str) -> None:
    """Refuse a condition that PostgreSQL cannot evaluate on the table."""
    try:
        # Prepared: PostgreSQL then accepts one statement only.
        connection.execute(snapshot.select(where=where, limit=1).encode(), prepare=True)
    except psycopg.OperationalError:
        # The connection or a timeout, not the condition: `snapshot` translates it.
        raise
    except psycopg.Error as refusal:
        raise ConfigError(
            f"PostgreSQL refuses the condition {where!r}: {refusal.diag.message_primary}",
            hint="Write a condition as after WHERE in SQL, on the columns of the table.",
        ) from refusal


def rows(
    connection: Connection,
    snapshot: PageSnapshot,
    *,
    where: str,
    cursor: tuple[str, ...],
    limit: int,
) -> Iterator[tuple[int, Image]]:
    """The rows of a page in blocks: count and cells."""
    select = snapshot.select(where=where, cursor=cursor, limit=limit)
    return copy(connection, select, len(snapshot.table.relation.columns))
