"""Tables that were added to a publication while transactions were writing to them.

What a transaction writes before its table is published is not in the stream, though the rest of the
transaction is. A snapshot taken while that transaction is open does not contain it either. So the
first snapshot of a newly published table waits for every transaction that is writing to the table.
Transactions that begin later are in the stream from their first row.

    BEGIN; INSERT row 1                                           row 1 is not in the stream
                         ALTER PUBLICATION ... ADD TABLE
                                        snapshot now              does not see row 1: it is lost
    INSERT row 2; COMMIT                                          row 2 is in the stream
                                                snapshot now      sees rows 1 and 2
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import psycopg
import structlog

from tailrace.postgres.connection import connect, translate_error
from tailrace.state_file import StateFile

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable
    from pathlib import Path

    from psycopg import Connection

    from tailrace.postgres.names import TableName

JOINED = "joined"
"""The name of the file."""
_POLL_S = 0.1
_REPORT_S = 10.0


class JoinedTables:
    """Remembers for which publication members the writers have already been waited for.

    A member is known by the oid of its catalog row: a table that is removed and added again has a
    new one.
    """

    def __init__(self, dsn: str, publication: str, folder: Path) -> None:
        self._dsn = dsn
        self._publication = publication
        self._file = StateFile(folder / JOINED, dict[str, int])

    def wait_for_writers(self, table: TableName, stopping: threading.Event) -> bool:
        """Return when a snapshot of the table is safe; False if `stopping` is set before that."""
        known = self._file.read_or({})
        with connect(self._dsn) as connection:
            try:
                member = self._member(connection, table)
                if member in (_FROM_CREATION, known.get(str(table))):
                    return True
                if not wait_for_writers(connection, table, stopping, partial(_warn, table)):
                    return False
            except psycopg.Error as refusal:
                raise translate_error(connection, refusal) from refusal
        self._file.write(known | {str(table): member})
        return True

    def _member(self, connection: Connection, table: TableName) -> int:
        """The oid of the catalog row that publishes the table: a new one each time it is added."""
        members = _TABLES + (_SCHEMAS if connection.info.server_version >= 150000 else "")
        query = _JOINED.format(members=members).encode()
        row = connection.execute(query, (table.quoted, self._publication)).fetchone()
        return row[0] if row is not None else _FROM_CREATION


def _warn(table: TableName, writers: list[Writer]) -> None:
    structlog.get_logger().warning(
        "snapshot.waiting_for_writers", table=str(table), writers=[str(each) for each in writers]
    )


@dataclass(frozen=True, slots=True, order=True)
class Writer:
    """A transaction that holds a lock on a table. A prepared transaction has no process."""

    transaction: str
    pid: int | None = field(compare=False)
    application: str = field(compare=False)
    seconds: int | None = field(compare=False)

    def __str__(self) -> str:
        session = "a prepared transaction" if self.pid is None else f"pid {self.pid}"
        since = "" if self.seconds is None else f"writing for {self.seconds} s"
        details = ", ".join(filter(None, (self.application, since)))
        return f"{session} ({details})" if details else session


def wait_for_writers(
    connection: Connection,
    table: TableName,
    stopping: threading.Event,
    report: Callable[[list[Writer]], None],
) -> bool:
    """Return when every transaction that writes to a table now has ended; False if stopped.

    `report` gets the transactions that are still open, at once and then every few seconds.
    """
    try:
        waited_s = 0.0
        writers = _writers(connection, table)
        while left := [each for each in _writers(connection, table) if each in writers]:
            if waited_s % _REPORT_S < _POLL_S:
                report(left)
            if stopping.wait(_POLL_S):
                return False
            waited_s += _POLL_S
    except psycopg.Error as refusal:
        raise translate_error(connection, refusal) from refusal
    return True


def _writers(connection: Connection, table: TableName) -> list[Writer]:
    rows = connection.execute(_WRITERS, {"table": table.quoted}).fetchall()
    return sorted(Writer(*row) for row in rows)


# A publication FOR ALL TABLES has no such row: it publishes a table from its creation.
_FROM_CREATION = 0
_JOINED = """
SELECT coalesce(max(j.oid::int8), 0) FROM pg_publication p
JOIN pg_class c ON c.oid = to_regclass(%s)
JOIN ({members}) j ON j.publication = p.oid AND j.member IN (c.oid, c.relnamespace)
WHERE p.pubname = %s
"""
_TABLES = "SELECT oid, prpubid AS publication, prrelid AS member FROM pg_publication_rel"
_SCHEMAS = " UNION ALL SELECT oid, pnpubid, pnnspid FROM pg_publication_namespace"
# A writer holds its lock until its transaction ends. pg_stat_activity hides other roles' sessions
# from an unprivileged role; pg_locks does not.
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
