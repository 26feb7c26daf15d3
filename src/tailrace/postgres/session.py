"""A session with the source that is kept between looks at it, and made again after a failure."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import psycopg

from tailrace.postgres.connection import connect, translate_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from psycopg import Connection

    from tailrace.config import Config

# Catalog functions lock the tables they tell of: behind an ALTER TABLE, come back later.
_LOCK_TIMEOUT = "SET lock_timeout TO '2s'"


class Session:
    """Opened when it is first used."""

    def __init__(self, config: Config, name: str) -> None:
        self._config = config
        self._name = name
        self._connection: Connection | None = None

    @contextlib.contextmanager
    def use(self) -> Iterator[Connection]:
        """The connection; errors of psycopg come out as ours."""
        if self._connection is None or self._connection.closed:
            self._connection = connect(
                self._config.source.dsn.get_secret_value(),
                application_name=self._name,
                connect_timeout_s=self._config.capture.connect_timeout_s,
            )
        connection = self._connection
        try:
            connection.execute(_LOCK_TIMEOUT)
            yield connection
        except psycopg.Error as error:
            raise translate_error(connection, error) from error

    def close(self) -> None:
        """Hang up."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
