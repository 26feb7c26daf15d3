"""The keeper: a process that holds an exported snapshot open.

Spark plans a read in a process that ends before the first task begins, and after a crash the
snapshot service resumes with the snapshot it had. So the exporting session belongs to a process of
its own. The keeper ends

- when no session has read from the snapshot for a while: a forgotten snapshot would hold back
  vacuum;
- when another session wants to alter or truncate the table: that session waits for the lock of the
  snapshot, and every later session waits for it, readers of the snapshot included.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import psycopg

from tailrace.errors import (
    PostgresRefusedError,
    PostgresUnreachableError,
    SnapshotLostError,
    TailraceError,
)
from tailrace.postgres.connection import connect, translate_error
from tailrace.postgres.names import TableName, quote_literal
from tailrace.snapshot.export import Exported, blocks_others, export

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from psycopg import Connection

_POLL_S = 1.0
IDLE_S = 30.0
_TERMINATE = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s"


def keep(dsn: str, table: TableName, *, idle_s: float = IDLE_S) -> Exported:
    """Take a snapshot that stays until no session has used it for `idle_s` seconds."""
    request = {"dsn": dsn, "table": [table.namespace, table.name], "idle_s": idle_s}
    with subprocess.Popen(
        [sys.executable, "-m", "tailrace.snapshot.keeper"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        # Over stdin: the connection string may hold a password, and process lists show arguments.
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.close()
        answer = json.loads(process.stdout.readline() or b"{}")
    if not answer:
        raise SnapshotLostError(
            "the keeper process ended before it had taken the snapshot",
            hint="Check the system log for an out-of-memory kill, then retry.",
        )
    if "error" in answer:
        kind = PostgresUnreachableError if answer["again"] else PostgresRefusedError
        raise kind(answer["error"], hint=answer["hint"])
    return Exported.of(answer)


def release(dsn: str, snapshot: Exported) -> None:
    """End a snapshot, its keeper and its lock on the table at once."""
    with connect(dsn) as connection:
        try:
            connection.execute(_TERMINATE, (_session(snapshot),))
        except psycopg.Error as refusal:
            raise translate_error(connection, refusal) from refusal


def main() -> None:
    """Read a request, fork, and take the snapshot; the child answers and holds it."""
    request = json.loads(sys.stdin.readline())
    if os.fork():
        # The parent ends, so that the requesting process has no child to wait for.
        os._exit(0)
    try:
        with connect(request["dsn"]) as connection:
            snapshot = export(connection, TableName(*request["table"]))
            session = quote_literal(_session(snapshot))
            connection.execute(f"SET application_name TO {session}".encode())
            _answer(snapshot.fields())
            _hold(connection, snapshot, request["idle_s"])
    except TailraceError as error:
        _answer({"error": str(error), "hint": error.hint, "again": error.transient})
    except psycopg.Error:
        # The connection is lost, and the snapshot with it: readers get their own error.
        return


def _session(snapshot: Exported) -> str:
    return f"tailrace keeper {snapshot.name}"


def _answer(fields: Mapping[str, object]) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.close()


def _hold(
    connection: Connection,
    snapshot: Exported,
    idle_s: float,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Return when no session has used the snapshot for `idle_s`, or it blocks another session."""
    readers = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
    used_s = clock()
    while clock() - used_s < idle_s:
        time.sleep(min(_POLL_S, idle_s / 4))
        # Within a transaction, pg_stat_activity is cached from its first use.
        connection.execute("SELECT pg_stat_clear_snapshot()")
        if blocks_others(connection):
            return
        row = connection.execute(readers, (snapshot.session,)).fetchone()
        if row is not None and row[0]:
            used_s = clock()


if __name__ == "__main__":
    main()
