"""The heartbeat: a transactional logical message at a steady pace, on a thread of its own.

A quiet publication in a busy cluster is kept moving by keepalives already. A heartbeat is for
those who want to see the whole path alive, from a commit in PostgreSQL to the far end.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import psycopg
import structlog

from tailrace.errors import TailraceError
from tailrace.postgres.connection import connect

if TYPE_CHECKING:
    from psycopg import Connection

PREFIX = "tailrace.heartbeat"


class Heartbeat:
    """Emits `tailrace.heartbeat` every `every_s` seconds from `start` to `stop`."""

    def __init__(self, dsn: str, *, every_s: float, connect_timeout_s: int) -> None:
        self._dsn = dsn
        self._every_s = every_s
        self._connect_timeout_s = connect_timeout_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tailrace-heartbeat", daemon=True)

    def start(self) -> None:
        """Begin to beat."""
        self._thread.start()

    def stop(self) -> None:
        """Stop; does not wait for a server that does not answer."""
        self._stop.set()

    def _run(self) -> None:
        connection: Connection | None = None
        while not self._stop.is_set():
            try:
                if connection is None or connection.closed:
                    connection = connect(self._dsn, connect_timeout_s=self._connect_timeout_s)
                connection.execute(
                    "SELECT pg_logical_emit_message(true, %s, now()::text)", (PREFIX,)
                )
            except (TailraceError, psycopg.Error) as error:
                # The stream itself reports a dead server; here it is enough to try again.
                code = error.code if isinstance(error, TailraceError) else type(error).__name__
                structlog.get_logger().warning("capture.heartbeat_missed", code=code)
                connection = None
            self._stop.wait(self._every_s)
        if connection is not None:
            connection.close()
