"""Lookup queries: `SELECT ... WHERE id = ANY($1)`, described once and run for many keys.

Values are PostgreSQL's text, as in the log, so nothing is converted on the way.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import psycopg
from psycopg import pq
from psycopg.errors import error_from_result

from tailrace.errors import ConfigError
from tailrace.postgres.connection import connect, translate_error
from tailrace.schema import Column

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from psycopg.pq.abc import PGresult

Row = tuple[bytes | None, ...]


class LookupSession:
    """A session for lookups, opened at its first use and again after a failure."""

    def __init__(self, dsn: str, *, timeout_s: float) -> None:
        self._dsn = dsn
        self._timeout_s = timeout_s
        self._connection: psycopg.Connection | None = None

    def describe(self, query: str, *, name: str) -> tuple[Column, ...]:
        """The columns of a query; refuses one without a parameter. `name` is for the error."""
        with self._use() as connection:
            _checked(connection, connection.pgconn.prepare(b"", query.encode()))
            found = _checked(connection, connection.pgconn.describe_prepared(b""))
        if found.nparams != 1 or not found.nfields:
            raise ConfigError(
                f"{name} must be a SELECT with the one parameter $1",
                hint="SELECT id, name FROM customers WHERE id = ANY($1)",
            )
        return tuple(
            Column(
                name=(found.fname(at) or b"").decode(),
                type_oid=found.ftype(at),
                type_modifier=found.fmod(at),
            )
            for at in range(found.nfields)
        )

    def rows(self, query: str, keys: Sequence[bytes]) -> list[Row]:
        """The rows for some keys, in any order."""
        with self._use() as connection:
            found = _checked(
                connection, connection.pgconn.exec_params(query.encode(), [_array(keys)])
            )
        width = range(found.nfields)
        return [tuple(found.get_value(row, at) for at in width) for row in range(found.ntuples)]

    @contextlib.contextmanager
    def _use(self) -> Iterator[psycopg.Connection]:
        known = self._connection
        if known is None or known.closed:
            connection = self._connection = connect(self._dsn, application_name="tailrace-lookup")
        else:
            connection = known
        try:
            if connection is not known:
                connection.execute("SET default_transaction_read_only TO on")
                connection.execute(f"SET statement_timeout TO {round(self._timeout_s * 1000)}")
            yield connection
        except psycopg.Error as error:
            connection.close()
            raise translate_error(connection, error) from error

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()


def _checked(connection: psycopg.Connection, result: PGresult) -> PGresult:
    if result.status not in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK):
        raise error_from_result(result, encoding=connection.info.encoding)
    return result


def _array(keys: Sequence[bytes]) -> bytes:
    """An array literal; PostgreSQL infers its type from the query."""
    quoted = (b'"' + key.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"' for key in keys)
    return b"{" + b",".join(quoted) + b"}"
