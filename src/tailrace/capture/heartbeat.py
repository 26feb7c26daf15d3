"""The heartbeat: a transactional logical message at a fixed interval, on a thread of its own.

The slot advances without heartbeats: keepalives do that when the publication is idle. A heartbeat
monitors the whole path, from a commit in PostgreSQL to the consumer.
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
    """Emits a message with the prefix `tailrace.heartbeat` every `interval_s` seconds.

    `stop` is the only clock of the thread: it waits on that event between messages.
    """

    def __init__(self, dsn: str, *, interval_s: float, connect_timeout_s: int) -> None:
        self._dsn = dsn
        self._interval_s = interval_s
        self._connect_timeout_s = connect_timeout_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tailrace-heartbeat", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop. Does not wait for the thread: the server may not respond."""
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
                # The session reports a dead server and backs off; the next interval retries here.
                code = error.code if isinstance(error, TailraceError) else type(error).__name__
                structlog.get_logger().warning(
                    "capture.heartbeat_missed", code=code, reason=str(error).partition("\n")[0]
                )
                connection = None
            self._stop.wait(self._interval_s)
        if connection is not None:
            connection.close()
