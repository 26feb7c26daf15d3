"""A session for components that look at the source again and again.

Opened at its first use and again after a failure. Not for capture: the stream has a connection of
its own in `tailrace.capture.replication`.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import psycopg

from tailrace.postgres.catalog import LOCK_TIMEOUT
from tailrace.postgres.connection import connect, translate_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from psycopg import Connection

    from tailrace.config import Config


class Session:
    """One connection, opened at its first use."""

    def __init__(self, config: Config, name: str) -> None:
        self._config = config
        self._name = name
        self._connection: Connection | None = None

    @contextlib.contextmanager
    def use(self) -> Iterator[Connection]:
        """The connection. Raises errors of psycopg as errors of Tailrace."""
        if self._connection is None or self._connection.closed:
            self._connection = connect(
                self._config.source.dsn.get_secret_value(),
                application_name=self._name,
                connect_timeout_s=self._config.capture.connect_timeout_s,
            )
        connection = self._connection
        try:
            connection.execute(LOCK_TIMEOUT)
            yield connection
        except psycopg.Error as error:
            raise translate_error(connection, error) from error

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
