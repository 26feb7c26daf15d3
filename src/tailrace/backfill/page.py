"""Pages of a table by its key, each read in a transaction of its own.

Short transactions do not keep PostgreSQL from cleaning up, and a page can be read again after a
crash from the key of the last row of the one before. A table without a key is one page.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import psycopg

from tailrace.errors import ConfigError, PostgresRefusedError
from tailrace.position import Lsn
from tailrace.postgres.catalog import CURRENT_LSN, read_key
from tailrace.postgres.connection import VALUES_SQL, quote_ident, quote_literal, translate_error
from tailrace.postgres.publication import read_publication
from tailrace.postgres.relations import read_published
from tailrace.snapshot.copy import copy
from tailrace.snapshot.export import oldest_writer
from tailrace.snapshot.table import described
from tailrace.visibility import Visibility

if TYPE_CHECKING:
    from collections.abc import Iterator

    from psycopg import Connection

    from tailrace.decode.group import Image
    from tailrace.postgres.publication import TableName
    from tailrace.snapshot.table import Table

_TAKE = f"SELECT pg_current_snapshot()::text, {CURRENT_LSN}, extract(epoch FROM now())::float8"  # noqa: S608 - a constant
_PARTITIONED = "SELECT relkind = 'p' FROM pg_class WHERE oid = %s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What a transaction sees, and how the table looks to it."""

    table: Table
    key: tuple[str, ...]
    partitioned: bool
    condition: str | None
    """The publication's own, which rows of the stream pass too."""
    visibility: Visibility
    lsn: Lsn
    taken_at: datetime
    since: datetime | None
    """What it does not see was committed after this; None: not known."""

    def select(self, *, where: str = "", cursor: tuple[str, ...] = (), limit: int = 0) -> str:
        """The rows behind a key, in its order. `where` was tried by `check`."""
        columns = ", ".join(quote_ident(column.name) for column in self.table.relation.columns)
        only = "" if self.partitioned else "ONLY "
        text = f"SELECT {columns} FROM {only}{self.table.name.quoted}"  # noqa: S608 - quoted
        found = [f"({self.condition})"] if self.condition else []
        if where:
            # A line of its own: a comment at its end must not swallow the bracket.
            found.append(f"({where}\n)")
        key = ", ".join(map(quote_ident, self.key))
        if cursor:
            found.append(f"({key}) > ({', '.join(map(quote_literal, cursor))})")
        if found:
            text += f" WHERE {' AND '.join(found)}"
        if self.key:
            text += f" ORDER BY {key}"
        return f"{text} LIMIT {limit}" if limit else text


@contextmanager
def moment(connection: Connection, publication: str, name: TableName) -> Iterator[Moment]:
    """A transaction over a published table. Leaves none behind."""
    try:
        connection.execute(VALUES_SQL)
        since = oldest_writer(connection)
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            # Before the snapshot: to an older one a table that was rewritten looks empty.
            connection.execute(f"LOCK TABLE {name.quoted} IN ACCESS SHARE MODE".encode())
            row = connection.execute(_TAKE).fetchone()
            assert row is not None
            table, condition = _published(connection, publication, name)
            oid = table.relation.oid
            partitioned = connection.execute(_PARTITIONED, (oid,)).fetchone()
            yield Moment(
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
    except psycopg.Error as refusal:
        raise translate_error(connection, refusal) from refusal


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
    """What tells rows apart in the stream: the replica identity, or else the primary key."""
    found = read_key(connection, table.relation.oid)
    sent = {column.name for column in table.relation.columns}
    return found if sent.issuperset(found) else ()


def estimate(connection: Connection, seen: Moment, where: str) -> int:
    """About how many rows there are, as PostgreSQL's planner thinks."""
    query = f"EXPLAIN (FORMAT json) {seen.select(where=where)}"
    row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return int(row[0][0]["Plan"]["Plan Rows"])


def check(connection: Connection, seen: Moment, where: str) -> None:
    """Refuse a condition that is not one, whole and by itself."""
    bare = f"SELECT FROM {seen.table.name.quoted} WHERE {where}\nLIMIT 0"
    try:
        # Prepared, so that it is one statement. Without our brackets around it and with them, so
        # that it can not close them.
        for text in (bare, seen.select(where=where, limit=1)):
            connection.execute(text.encode(), prepare=True)
    except psycopg.Error as refusal:
        raise ConfigError(
            f"PostgreSQL does not take the condition {where!r}: {refusal.diag.message_primary}",
            hint="Write it as behind WHERE in SQL, over the columns of the table.",
        ) from refusal


def rows(
    connection: Connection, seen: Moment, *, where: str, cursor: tuple[str, ...], limit: int
) -> Iterator[tuple[int, Image]]:
    """The rows of a page: how many, and their cells."""
    select = seen.select(where=where, cursor=cursor, limit=limit)
    return copy(connection, select, len(seen.table.relation.columns))
