"""Tables that join a publication while somebody writes to them.

What a transaction wrote before its table was published is not in the stream, though the rest of
the transaction is. A snapshot taken while that transaction is open does not have it either. So the
first snapshot of a table since it joined waits for everybody who was writing to it; whoever begins
later is in the stream from the first row on.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import psycopg
import structlog

from tailrace.log.store import LocalStore
from tailrace.postgres.connection import connect, translate_error

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable
    from pathlib import Path

    from psycopg import Connection

    from tailrace.postgres.publication import TableName

_FILE = "joined"
_LOOK_S = 0.1
_SAY_S = 10.0


class Joining:
    """Remembers which tables have joined, by the catalog row that says so."""

    def __init__(self, dsn: str, publication: str, folder: Path) -> None:
        self._dsn = dsn
        self._publication = publication
        self._folder = folder

    def wait(self, table: TableName, stopping: threading.Event) -> bool:
        """Return when a snapshot of the table is safe; False if we are to stop before that."""
        known = self._known()
        with connect(self._dsn) as connection:
            try:
                joined = self._joined(connection, table)
                if joined in (_FROM_CREATION, known.get(str(table))):
                    return True
                if not wait_for_writers(connection, table, stopping, partial(_warn, table)):
                    return False
            except psycopg.Error as refusal:
                raise translate_error(connection, refusal) from refusal
        content = json.dumps(known | {str(table): joined}).encode()
        LocalStore(self._folder, create=True).write_atomic(_FILE, content)
        return True

    def _joined(self, connection: Connection, table: TableName) -> int:
        """The catalog row that made the table a member: a new one each time it is added."""
        members = _TABLES + (_SCHEMAS if connection.info.server_version >= 150000 else "")
        query = _JOINED.format(members=members).encode()
        row = connection.execute(query, (table.quoted, self._publication)).fetchone()
        return row[0] if row is not None else _FROM_CREATION

    def _known(self) -> dict[str, int]:
        with contextlib.suppress(FileNotFoundError, ValueError):
            found = json.loads((self._folder / _FILE).read_text())
            return found if isinstance(found, dict) else {}
        return {}


def _warn(table: TableName, left: list[Writer]) -> None:
    structlog.get_logger().warning(
        "snapshot.waiting-for-writers", table=str(table), writers=[str(each) for each in left]
    )


@dataclass(frozen=True, slots=True, order=True)
class Writer:
    """A transaction that has a lock on a table. One that is prepared has no process."""

    transaction: str
    pid: int | None = field(compare=False)
    application: str = field(compare=False)
    seconds: int | None = field(compare=False)

    def __str__(self) -> str:
        who = "a prepared transaction" if self.pid is None else f"pid {self.pid}"
        since = "" if self.seconds is None else f"writing for {self.seconds} s"
        details = ", ".join(filter(None, (self.application, since)))
        return f"{who} ({details})" if details else who


def wait_for_writers(
    connection: Connection,
    table: TableName,
    stopping: threading.Event,
    say: Callable[[list[Writer]], None],
) -> bool:
    """Return when all who write to a table now are over; False if we are to stop before that.

    `say` gets those who are waited for, at once and then every few seconds.
    """
    try:
        waited_s = 0.0
        writing = _writers(connection, table)
        while left := [each for each in _writers(connection, table) if each in writing]:
            if waited_s % _SAY_S < _LOOK_S:
                say(left)
            if stopping.wait(_LOOK_S):
                return False
            waited_s += _LOOK_S
    except psycopg.Error as refusal:
        raise translate_error(connection, refusal) from refusal
    return True


def _writers(connection: Connection, table: TableName) -> list[Writer]:
    rows = connection.execute(_WRITERS, {"table": table.quoted}).fetchall()
    return sorted(Writer(*row) for row in rows)


# A publication of all tables has no such row: there a table is published from its creation on.
_FROM_CREATION = 0
_JOINED = """
SELECT coalesce(max(j.oid::int8), 0) FROM pg_publication p
JOIN pg_class c ON c.oid = to_regclass(%s)
JOIN ({members}) j ON j.publication = p.oid AND j.member IN (c.oid, c.relnamespace)
WHERE p.pubname = %s
"""
_TABLES = "SELECT oid, prpubid AS publication, prrelid AS member FROM pg_publication_rel"
_SCHEMAS = " UNION ALL SELECT oid, pnpubid, pnnspid FROM pg_publication_namespace"
# A writer keeps its lock until it is over. What others do is not for every role to see.
_WRITERS = """
SELECT DISTINCT ON (l.virtualtransaction) l.virtualtransaction, l.pid,
       coalesce(a.application_name, ''),
       extract(epoch FROM clock_timestamp() - a.xact_start)::int
FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'relation' AND l.granted AND l.mode <> 'AccessShareLock'
  AND l.pid IS DISTINCT FROM pg_backend_pid()
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND l.relation IN (SELECT to_regclass(%(table)s)::oid
                     UNION ALL SELECT relid::oid FROM pg_partition_tree(to_regclass(%(table)s)))
"""
