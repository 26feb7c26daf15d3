"""An exported snapshot: taken and held by one session, imported by others.

The order of the first two commands matters, for the one who takes it and for those who read. The
lock keeps the table from being rewritten or emptied under those who read it page by page; the
snapshot is taken after it is granted, so nothing of the kind can have happened in between. A reader
that has the lock finds the snapshot alive, and so the table as it was, or gone.
"""

from __future__ import annotations

from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Self

import psycopg

from tailrace.errors import PostgresRefusedError, PostgresUnreachableError
from tailrace.position import Lsn
from tailrace.postgres.catalog import CURRENT_LSN
from tailrace.postgres.connection import VALUES_SQL, connect, quote_literal, translate_error
from tailrace.postgres.publication import TableName
from tailrace.visibility import Visibility

if TYPE_CHECKING:
    from collections.abc import Iterator

    from psycopg import Connection

_LOCK_S = 10
# Whoever waits for a table also holds up all who come after him. Those who build an index wait for
# the end of old transactions, which holds up nobody.
_IN_THE_WAY = """
SELECT EXISTS (
    SELECT FROM pg_locks
    WHERE locktype = 'relation' AND NOT granted
      AND pg_backend_pid() = ANY(pg_blocking_pids(pid))
)
"""
# Whoever writes here now, and may not be over when the snapshot is taken. A role without rights is
# shown that there are others, and not what they do.
_OLDEST = """
SELECT min(begun), bool_or(hidden) FROM (
    SELECT xact_start, query = '<insufficient privilege>' FROM pg_stat_activity
    WHERE datname = current_database()
      AND (backend_xid IS NOT NULL OR query = '<insufficient privilege>')
    UNION ALL
    SELECT prepared, false FROM pg_prepared_xacts WHERE database = current_database()
    UNION ALL
    SELECT clock_timestamp(), false
) writers (begun, hidden)
"""
_TAKE = f"""
SELECT pg_export_snapshot(), pg_current_snapshot()::text, {CURRENT_LSN},
       extract(epoch FROM now())::float8
"""  # noqa: S608 - the fragments are constants
# Indexes, workers that read side by side and whoever reads the table at the same time would each
# give rows another order.
_PAGE_ORDER = """
SET synchronize_seqscans TO off; SET max_parallel_workers_per_gather TO 0;
SET enable_indexscan TO off; SET enable_indexonlyscan TO off; SET enable_bitmapscan TO off;
SET enable_seqscan TO on; SET enable_tidscan TO on
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A snapshot that others may import as long as the session that took it lives."""

    name: str
    table: TableName
    visibility: Visibility
    lsn: Lsn
    """Everything the snapshot sees was committed before."""
    taken_at: datetime
    since: datetime | None
    """Changes it does not see were committed after this, even those that stand in the write-ahead
    log before `lsn`. None: not known, because the role may not see what others do."""

    @property
    def session(self) -> str:
        """The name of the sessions that read from it, by which it is known that some do."""
        return f"tailrace snapshot {self.name}"

    def fields(self) -> dict[str, str]:
        """As text, to hand on."""
        return {
            "name": self.name,
            "table": self.table.quoted,
            "visibility": str(self.visibility),
            "lsn": str(self.lsn),
            "taken_at": self.taken_at.isoformat(),
            "since": "" if self.since is None else self.since.isoformat(),
        }

    @classmethod
    def of(cls, fields: dict[str, str]) -> Self:
        """Read what `fields` wrote."""
        return cls(
            name=fields["name"],
            table=TableName.parse(fields["table"]),
            visibility=Visibility.parse(fields["visibility"]),
            lsn=Lsn.parse(fields["lsn"]),
            taken_at=datetime.fromisoformat(fields["taken_at"]),
            since=datetime.fromisoformat(fields["since"]) if fields["since"] else None,
        )


def export(connection: Connection, table: TableName) -> Exported:
    """Take a snapshot; it lives until the connection's transaction ends.

    The table is locked against what would rewrite it (ALTER, VACUUM FULL, TRUNCATE), and against
    nothing else.
    """
    try:
        # Before the snapshot: what begins in between begins later than what is found here.
        since = oldest_writer(connection)
        _begin(connection, table)
        row = connection.execute(_TAKE).fetchone()
    except psycopg.Error as refusal:
        raise translate_error(connection, refusal) from refusal
    assert row is not None
    return Exported(
        name=row[0],
        table=table,
        visibility=Visibility.parse(row[1]),
        lsn=Lsn.parse(row[2]),
        taken_at=datetime.fromtimestamp(row[3], UTC),
        since=since,
    )


def oldest_writer(connection: Connection) -> datetime | None:
    """Since when somebody has been writing that is not over yet; now, if nobody is."""
    row = connection.execute(_OLDEST).fetchone()
    assert row is not None
    return None if row[1] else row[0]


def _begin(connection: Connection, table: TableName) -> None:
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    connection.execute(f"SET LOCAL lock_timeout TO '{_LOCK_S}s'".encode())
    try:
        connection.execute(f"LOCK TABLE {table.quoted} IN ACCESS SHARE MODE".encode())
    except psycopg.errors.LockNotAvailable as refusal:
        raise PostgresUnreachableError(
            f"{table} is locked by another session for more than {_LOCK_S} s",
            hint="Wait for the ALTER TABLE or VACUUM FULL that holds it, and try again.",
        ) from refusal


def in_page_order(connection: Connection) -> None:
    """Have a session read tables in the order of their pages, the same each time."""
    try:
        connection.execute(_PAGE_ORDER)
    except psycopg.Error as refusal:
        raise translate_error(connection, refusal) from refusal


def in_the_way(connection: Connection) -> bool:
    """Whether somebody waits for a table that this session has locked."""
    row = connection.execute(_IN_THE_WAY).fetchone()
    return row is not None and bool(row[0])


@contextmanager
def imported(dsn: str, snapshot: Exported) -> Iterator[Connection]:
    """A session that sees what the snapshot sees, and prints values as the stream does."""
    with closing(connect(dsn)) as connection:
        try:
            connection.execute(VALUES_SQL)
            named = quote_literal(snapshot.session)
            connection.execute(f"SET application_name TO {named}".encode())
            _begin(connection, snapshot.table)
            wanted = quote_literal(snapshot.name)
            connection.execute(f"SET TRANSACTION SNAPSHOT {wanted}".encode())
        except (psycopg.errors.UndefinedObject, psycopg.errors.InvalidParameterValue) as refusal:
            raise PostgresRefusedError(
                f"snapshot {snapshot.name} of {snapshot.taken_at:%H:%M:%S} is gone",
                hint="It ends when somebody wants to alter or empty the table, or when nobody has "
                "read from it for a while. Read again for a new one.",
            ) from refusal
        except psycopg.Error as refusal:
            raise translate_error(connection, refusal) from refusal
        yield connection
