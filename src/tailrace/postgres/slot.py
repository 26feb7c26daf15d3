"""The replication slot: where PostgreSQL records how far capture has read.

Reads, creates and drops the slot over an ordinary connection. `tailrace.postgres.bootstrap` decides
whether a slot *may* be created: never for an existing log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.rows import class_row

from tailrace.errors import PostgresRefusedError
from tailrace.position import Lsn
from tailrace.postgres.connection import translate_error

if TYPE_CHECKING:
    from datetime import datetime, timedelta
    from typing import LiteralString

    from psycopg import Connection

PLUGIN = "pgoutput"
FAILOVER_VERSION = 170000


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotState:
    """A row of pg_replication_slots. Columns that an older server lacks have their default."""

    name: str
    plugin: str | None
    slot_type: str
    database: str | None
    temporary: bool
    active_pid: int | None
    restart_lsn: Lsn | None
    confirmed_flush_lsn: Lsn | None
    wal_status: str | None
    safe_wal_bytes: int | None
    kept_wal_bytes: int | None
    two_phase: bool = False
    failover: bool = False
    synced: bool = False
    invalidation_reason: str | None = None

    @property
    def lost(self) -> bool:
        """Whether PostgreSQL has invalidated the slot."""
        return self.wal_status == "lost" or self.invalidation_reason is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """An open transaction that has written. A prepared one has a `gid` and no pid."""

    pid: int | None
    gid: str
    application: str
    age: timedelta | None
    query_start: datetime | None

    def __str__(self) -> str:
        name = f"prepared transaction {self.gid!r}" if self.gid else f"pid {self.pid}"
        parts = [
            self.application,
            f"open for {str(self.age).split('.')[0]}" if self.age is not None else "",
            f"last statement began {self.query_start:%Y-%m-%d %H:%M:%S %Z}"
            if self.query_start
            else "",
        ]
        details = ", ".join(filter(None, parts))
        return f"{name} ({details})" if details else name


def read_slot(connection: Connection, name: str) -> SlotState | None:
    """The slot in the catalogs; None if it does not exist."""
    try:
        row = connection.execute(_READ, (name,)).fetchone()
    except psycopg.Error as error:
        raise translate_error(connection, error) from error
    return _state(row[0], row[1]) if row else None


def read_slots(connection: Connection, prefix: str) -> list[SlotState]:
    """The logical slots of this database whose names begin with `prefix`, by name."""
    try:
        rows = connection.execute(_READ_ALL, (prefix,)).fetchall()
    except psycopg.Error as error:
        raise translate_error(connection, error) from error
    return [_state(*row) for row in rows]


# As JSON, because every major version has added columns.
_STATES: LiteralString = """
SELECT to_jsonb(s),
       pg_wal_lsn_diff(
           CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
                ELSE pg_current_wal_lsn() END,
           s.restart_lsn)::bigint
FROM pg_replication_slots s
"""
_READ = _STATES + "WHERE s.slot_name = %s"
_READ_ALL = (
    _STATES
    + """
WHERE starts_with(s.slot_name, %s) AND s.slot_type = 'logical' AND s.database = current_database()
ORDER BY s.slot_name
"""
)


def _state(row: dict[str, Any], kept_wal_bytes: int | None) -> SlotState:
    return SlotState(
        name=row["slot_name"],
        plugin=row["plugin"],
        slot_type=row["slot_type"],
        database=row["database"],
        temporary=row["temporary"],
        active_pid=row["active_pid"],
        restart_lsn=_lsn(row["restart_lsn"]),
        confirmed_flush_lsn=_lsn(row["confirmed_flush_lsn"]),
        wal_status=row["wal_status"],
        safe_wal_bytes=row["safe_wal_size"],
        kept_wal_bytes=kept_wal_bytes,
        two_phase=row.get("two_phase", False),
        failover=row.get("failover", False),
        synced=row.get("synced", False),
        invalidation_reason=row.get("invalidation_reason"),
    )


def _lsn(text: str | None) -> Lsn | None:
    return Lsn.parse(text) if text is not None else None


def create_slot(
    connection: Connection,
    name: str,
    *,
    failover: bool | None = None,
    timeout_s: float = 30,
) -> SlotState:
    """Create a logical slot for pgoutput, with failover if the server supports it.

    PostgreSQL waits for every open transaction that has written, in any database. After `timeout_s`
    the error names these transactions.
    """
    # A standby refuses to mark a slot for failover.
    option = ", failover => coalesce(%(failover)s, NOT pg_is_in_recovery())"
    supported = connection.info.server_version >= FAILOVER_VERSION
    try:
        with connection.transaction():
            connection.execute(
                "SELECT set_config('statement_timeout', %s, true)", (str(int(timeout_s * 1000)),)
            )
            connection.execute(
                "SELECT pg_create_logical_replication_slot(%(name)s, %(plugin)s"
                + (option if supported else "")
                + ")",
                {"name": name, "plugin": PLUGIN, "failover": failover},
            )
    except psycopg.errors.QueryCanceled as error:
        raise _blocked(connection, name, timeout_s) from error
    except psycopg.Error as error:
        raise translate_error(connection, error) from error
    state = read_slot(connection, name)
    if state is None:
        raise PostgresRefusedError(
            f"replication slot {name!r} was dropped while it was being created"
        )
    return state


def _blocked(connection: Connection, name: str, timeout_s: float) -> PostgresRefusedError:
    blockers = open_transactions(connection)
    names = "; ".join(str(blocker) for blocker in blockers) or "all of them have ended by now"
    commands = " ".join(
        f"SELECT pg_terminate_backend({blocker.pid});" for blocker in blockers if blocker.pid
    )
    return PostgresRefusedError(
        f"replication slot {name!r} was not created within {timeout_s:g} s: PostgreSQL waits for "
        f"open transactions that have written: {names}",
        hint=f"Wait for them and run `tailrace init` again, or end them: {commands}".removesuffix(
            ", or end them: "
        ),
    )


def open_transactions(connection: Connection) -> list[OpenTransaction]:
    """Every open transaction that has written, oldest first, in all databases."""
    with connection.cursor(row_factory=class_row(OpenTransaction)) as cursor:
        try:
            return cursor.execute(_OPEN).fetchall()
        except psycopg.Error as error:
            raise translate_error(connection, error) from error


# pg_locks shows the holders of transaction ids to every role. pg_stat_activity hides transactions
# of other users from a role without pg_monitor, so it only adds details. The query text is left
# out: it may contain row data.
_OPEN = """
SELECT writer.pid, '' AS gid, coalesce(a.application_name, '') AS application,
       now() - a.xact_start AS age, a.query_start
FROM (SELECT DISTINCT pid FROM pg_locks
      WHERE locktype = 'transactionid' AND mode = 'ExclusiveLock' AND granted
        AND pid IS NOT NULL AND pid <> pg_backend_pid()) writer
LEFT JOIN pg_stat_activity a ON a.pid = writer.pid
UNION ALL
SELECT NULL, gid, '', now() - prepared, NULL FROM pg_prepared_xacts
ORDER BY age DESC NULLS LAST
"""


def drop_slot(connection: Connection, name: str) -> None:
    """Drop the slot. Changes that it has not sent yet are lost."""
    try:
        connection.execute("SELECT pg_drop_replication_slot(%s)", (name,))
    except psycopg.Error as error:
        raise translate_error(connection, error) from error
