"""Exported snapshots: one session takes and holds a snapshot, other sessions import it.

Both the exporting and the importing session first lock the table, then take or import the snapshot;
this order matters. The lock keeps ALTER, VACUUM FULL and TRUNCATE from rewriting the table while
sessions read it page by page. Because the snapshot comes after the lock, no rewrite can happen in
between. A reader that has the lock can either import the snapshot, and then the table is unchanged,
or the snapshot is gone.
"""

from __future__ import annotations

from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple, Self

import psycopg

from tailrace.errors import PostgresUnreachableError, SnapshotLostError
from tailrace.position import Lsn
from tailrace.postgres.catalog import CURRENT_LSN
from tailrace.postgres.connection import VALUES_SQL, connect, translate_error
from tailrace.postgres.names import TableName, quote_literal
from tailrace.visibility import Visibility

if TYPE_CHECKING:
    from collections.abc import Iterator

    from psycopg import Connection

_LOCK_S = 10
# A session that waits for a lock on the table blocks every later session. CREATE INDEX CONCURRENTLY
# waits for old transactions instead, which blocks no other session.
_BLOCKS_OTHERS = """
SELECT EXISTS (
    SELECT FROM pg_locks
    WHERE locktype = 'relation' AND NOT granted
      AND pg_backend_pid() = ANY(pg_blocking_pids(pid))
)
"""
# The transactions that write now and may still be open when the snapshot is taken. An unprivileged
# role sees that other sessions exist, but not their transactions.
_OLDEST_WRITER = """
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
# Indexes, parallel workers and synchronized scans would each return rows in another order.
_PAGE_ORDER = """
SET synchronize_seqscans TO off; SET max_parallel_workers_per_gather TO 0;
SET enable_indexscan TO off; SET enable_indexonlyscan TO off; SET enable_bitmapscan TO off;
SET enable_seqscan TO on; SET enable_tidscan TO on
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A snapshot that sessions can import while the session that took it is open."""

    name: str
    table: TableName
    visibility: Visibility
    lsn: Lsn
    """Everything that the snapshot sees was committed before this LSN."""
    taken_at: datetime
    since: datetime | None
    """Every change that the snapshot does not see was committed after this time, also if it stands
    in the write-ahead log before `lsn`. None: unknown, because the role may not see other sessions'
    transactions."""

    @property
    def session(self) -> str:
        """The application name of the sessions that read it: the keeper looks for it."""
        return f"tailrace snapshot {self.name}"

    def fields(self) -> dict[str, str]:
        """As texts, for JSON."""
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
        """Parse the output of `fields`."""
        return cls(
            name=fields["name"],
            table=TableName.parse(fields["table"]),
            visibility=Visibility.parse(fields["visibility"]),
            lsn=Lsn.parse(fields["lsn"]),
            taken_at=datetime.fromisoformat(fields["taken_at"]),
            since=datetime.fromisoformat(fields["since"]) if fields["since"] else None,
        )


class Bound(NamedTuple):
    """The snapshot contains every change of its table up to `lsn`."""

    lsn: Lsn
    since: datetime
    """The stream has stored every change that the snapshot does not contain since this time."""


def export(connection: Connection, table: TableName) -> Exported:
    """Take a snapshot; it is valid until the connection's transaction ends.

    The table is locked in ACCESS SHARE mode: against ALTER, VACUUM FULL and TRUNCATE only.
    """
    try:
        # Before the snapshot: a transaction that begins in between begins later than this one.
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
    """When the oldest open writing transaction began; now if there is none; None if unknown."""
    row = connection.execute(_OLDEST_WRITER).fetchone()
    assert row is not None
    return None if row[1] else row[0]


def _begin(connection: Connection, table: TableName) -> None:
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    connection.execute(f"SET LOCAL lock_timeout TO '{_LOCK_S}s'".encode())
    try:
        connection.execute(f"LOCK TABLE {table.quoted} IN ACCESS SHARE MODE".encode())
    except psycopg.errors.LockNotAvailable as refusal:
        raise PostgresUnreachableError(
            f"cannot lock {table}: another session has held a lock on it for more than {_LOCK_S} s",
            hint="Wait for the ALTER TABLE or VACUUM FULL that holds the lock, then retry.",
        ) from refusal


def in_page_order(connection: Connection) -> None:
    """Make a session read tables in page order: the same rows in the same order each time."""
    try:
        connection.execute(_PAGE_ORDER)
    except psycopg.Error as refusal:
        raise translate_error(connection, refusal) from refusal


def blocks_others(connection: Connection) -> bool:
    """Whether another session waits for a table that this session has locked."""
    row = connection.execute(_BLOCKS_OTHERS).fetchone()
    return row is not None and bool(row[0])


@contextmanager
def imported(dsn: str, snapshot: Exported) -> Iterator[Connection]:
    """A session that has imported the snapshot, and prints values as the stream does.

    SnapshotLostError: the session that exported it has ended.
    """
    with closing(connect(dsn)) as connection:
        try:
            connection.execute(VALUES_SQL)
            session = quote_literal(snapshot.session)
            connection.execute(f"SET application_name TO {session}".encode())
            _begin(connection, snapshot.table)
            name = quote_literal(snapshot.name)
            connection.execute(f"SET TRANSACTION SNAPSHOT {name}".encode())
            _check_snapshot(connection, snapshot)
        except (psycopg.errors.UndefinedObject, psycopg.errors.InvalidParameterValue) as refusal:
            raise _lost(snapshot) from refusal
        except psycopg.Error as refusal:
            raise translate_error(connection, refusal) from refusal
        yield connection


def _check_snapshot(connection: Connection, snapshot: Exported) -> None:
    """Names begin again when PostgreSQL restarts: this one may be another session's snapshot."""
    [(found,)] = connection.execute(b"SELECT pg_current_snapshot()::text").fetchall()
    if Visibility.parse(found) != snapshot.visibility:
        raise _lost(snapshot)


def _lost(snapshot: Exported) -> SnapshotLostError:
    return SnapshotLostError(
        f"snapshot {snapshot.name} of {snapshot.taken_at:%H:%M:%S} no longer exists",
        hint="It ends when another session wants to alter or truncate the table, or when "
        "no session has read from it for a while. Read again: a new snapshot is taken.",
    )
