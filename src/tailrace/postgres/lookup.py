"""Lookup queries: `SELECT ... WHERE id = ANY($1)`, described once and run for many keys.

Values are PostgreSQL's text, as in the log, so nothing is converted on the way.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import psycopg
from psycopg import pq
from psycopg.errors import error_from_result
from psycopg.generators import execute

from tailrace.errors import ConfigError
from tailrace.postgres.connection import SESSION_SQL, conninfo, translate, translate_error
from tailrace.postgres.limited import LimitedConnection
from tailrace.schema import Column

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from psycopg.pq.abc import PGresult

_GRACE_S = 5.0
Row = tuple[bytes | None, ...]


class LookupSession:
    """A session for lookups, opened at its first use and again after a failure."""

    def __init__(self, dsn: str, *, timeout_s: float) -> None:
        self._dsn = dsn
        self._timeout_s = timeout_s
        self._connection: LimitedConnection | None = None

    def describe(self, query: str, *, name: str) -> tuple[Column, ...]:
        """The columns of a query; refuses one without a parameter. `name` is for the error."""
        with self._use() as connection:
            connection.pgconn.send_prepare(b"", query.encode())
            _answer(connection)
            connection.pgconn.send_describe_prepared(b"")
            found = _answer(connection)
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
            connection.pgconn.send_query_params(query.encode(), [_array(keys)])
            found = _answer(connection)
        width = range(found.nfields)
        return [tuple(found.get_value(row, at) for at in width) for row in range(found.ntuples)]

    @contextlib.contextmanager
    def _use(self) -> Iterator[LimitedConnection]:
        if self._connection is None or self._connection.closed:
            self._connection = self._connected()
        connection = self._connection
        try:
            yield connection
        except psycopg.Error as error:
            connection.close()
            raise translate_error(connection, error) from error

    def _connected(self) -> LimitedConnection:
        try:
            made = LimitedConnection.connect(
                conninfo(self._dsn, application_name="tailrace-lookup"), autocommit=True
            )
            made.execute(SESSION_SQL)
            made.execute("SET default_transaction_read_only TO on")
            made.execute(f"SET statement_timeout TO {round(self._timeout_s * 1000)}")
        except psycopg.Error as error:
            raise translate(error, dsn=self._dsn) from error
        # The server ends a statement earlier by itself, and says why.
        made.answer_timeout_s = self._timeout_s + _GRACE_S
        return made

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()


def _answer(connection: LimitedConnection) -> PGresult:
    """The result of what was sent; raises an error of psycopg."""
    result: PGresult = connection.wait(execute(connection.pgconn))[-1]
    if result.status not in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK):
        raise error_from_result(result, encoding=connection.info.encoding)
    return result


def _array(keys: Sequence[bytes]) -> bytes:
    """An array literal; PostgreSQL infers its type from the query."""
    quoted = (b'"' + key.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"' for key in keys)
    return b"{" + b",".join(quoted) + b"}"
