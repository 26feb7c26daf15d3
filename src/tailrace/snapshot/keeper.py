"""The process that keeps a snapshot: it outlives the ones that asked for it and read from it.

Spark plans a read in a process that ends before the first task begins, and a crashed engine may
want to go on with the snapshot it had. So the session that holds it belongs to a process of its
own, which ends by itself once nobody has read from the snapshot for a while: a forgotten one would
keep PostgreSQL from cleaning up dead rows. And it gives way to whoever wants to alter or empty the
table: he waits for the lock that the snapshot needs, and everybody else who comes to the table
waits behind him, our own readers among them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import psycopg

from tailrace.errors import PostgresRefusedError, PostgresUnreachableError, Retry, TailraceError
from tailrace.postgres.connection import connect, quote_literal, translate_error
from tailrace.postgres.publication import TableName
from tailrace.snapshot.export import Exported, export, in_the_way

if TYPE_CHECKING:
    from collections.abc import Mapping

    from psycopg import Connection

_LOOK_S = 1.0
IDLE_S = 30.0
_END = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s"


def keep(dsn: str, table: TableName, *, idle_s: float = IDLE_S) -> Exported:
    """Take a snapshot that lives on until nobody has used it for `idle_s` seconds."""
    asked = {"dsn": dsn, "table": [table.namespace, table.name], "idle_s": idle_s}
    with subprocess.Popen(
        [sys.executable, "-m", "tailrace.snapshot.keeper"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        # The connection string may hold a password: it goes where no process list shows it.
        process.stdin.write(json.dumps(asked).encode() + b"\n")
        process.stdin.close()
        answer = json.loads(process.stdout.readline() or b"{}")
    if not answer:
        raise PostgresUnreachableError("the process that should keep a snapshot has died")
    if "error" in answer:
        kind = PostgresUnreachableError if answer["again"] else PostgresRefusedError
        raise kind(answer["error"], hint=answer["hint"])
    return Exported.of(answer)


def release(dsn: str, snapshot: Exported) -> None:
    """Let a snapshot go before its keeper does, and with it the lock on its table."""
    with connect(dsn) as connection:
        try:
            connection.execute(_END, (_session(snapshot),))
        except psycopg.Error as refusal:
            raise translate_error(connection, refusal) from refusal


def main() -> None:
    """Read what is asked for, answer, and stay, as nobody's child."""
    asked = json.loads(sys.stdin.readline())
    if os.fork():
        # Whoever asked need not wait for the one that stays.
        os._exit(0)
    try:
        with connect(asked["dsn"]) as connection:
            snapshot = export(connection, TableName(*asked["table"]))
            named = quote_literal(_session(snapshot))
            connection.execute(f"SET application_name TO {named}".encode())
            _answer(snapshot.fields())
            _watch(connection, snapshot, asked["idle_s"])
    except TailraceError as error:
        again = error.retry is Retry.BACK_OFF
        _answer({"error": str(error), "hint": error.hint, "again": again})
    except psycopg.Error:
        # The server is gone, and the snapshot with it: whoever reads from it is told so.
        return


def _session(snapshot: Exported) -> str:
    return f"tailrace keeper {snapshot.name}"


def _answer(fields: Mapping[str, object]) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.close()


def _watch(connection: Connection, snapshot: Exported, idle_s: float) -> None:
    """Return once nobody has had a session with the snapshot for a while, or it is in the way."""
    users = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
    used_at = time.monotonic()
    while time.monotonic() - used_at < idle_s:
        time.sleep(min(_LOOK_S, idle_s / 4))
        # Without this a transaction sees the activity it saw first.
        connection.execute("SELECT pg_stat_clear_snapshot()")
        if in_the_way(connection):
            return
        row = connection.execute(users, (snapshot.session,)).fetchone()
        if row is not None and row[0]:
            used_at = time.monotonic()


if __name__ == "__main__":
    main()
