"""The connection to the target database: transactions, COPY, and errors as Tailrace's.

It needs a connection of its own to the server: a pooler in transaction mode would lose the
temporary tables and the settings of the session.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tailrace.errors import ConfigError, SinkRefusedError
from tailrace.postgres.connection import SESSION_SQL, conninfo
from tailrace.postgres.limited import LimitedConnection
from tailrace.settings import is_loopback
from tailrace.sinks.postgres.failures import translate_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tailrace.sinks.postgres.settings import PostgresSink

    Values = Sequence[Any] | Mapping[str, Any] | None

_ENCRYPTED = ("require", "verify-ca", "verify-full")
_SETTINGS = (
    "SET client_min_messages TO warning",
    # The statements of mode `tables` have many expressions and run for milliseconds.
    "SET jit TO off",
)


class Session:
    """An open connection. Outside of `begin` and `commit` every statement commits itself."""

    def __init__(self, settings: PostgresSink, *, name: str) -> None:
        self.dsn = _dsn(settings)
        with self.errors():
            self._connection = LimitedConnection.connect(
                conninfo(
                    self.dsn,
                    application_name=f"tailrace {name}",
                    connect_timeout_s=settings.connect_timeout_s,
                ),
                autocommit=True,
                prepare_threshold=None,
            )
        # The server ends a statement earlier by itself, and says why.
        self._connection.answer_timeout_s = (
            settings.statement_timeout_s + settings.connect_timeout_s
        )
        try:
            self._prepare(settings)
        except BaseException:
            self.close()
            raise

    def _prepare(self, settings: PostgresSink) -> None:
        statements = [SESSION_SQL, *_SETTINGS]
        statements.append(f"SET statement_timeout TO '{settings.statement_timeout_s}s'")
        if settings.synchronous_commit:
            statements.append(f"SET synchronous_commit TO {settings.synchronous_commit}")
        if settings.replica_role:
            statements.append("SET session_replication_role TO replica")
        self.run("; ".join(statements))

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return self._connection.info.transaction_status != pq.TransactionStatus.IDLE

    @property
    def server_version(self) -> str:
        """The version of the server."""
        return self._connection.info.parameter_status("server_version") or "of unknown version"

    def run(self, statement: str, values: Values = None) -> psycopg.Cursor[Any]:
        """Run a statement, or several without values."""
        with self.errors():
            return self.execute(statement, values)

    def execute(self, statement: str, values: Values = None) -> psycopg.Cursor[Any]:
        """Run a statement; errors stay psycopg's."""
        return self._connection.execute(statement.encode(), values)

    def copy(self, statement: str, data: Iterable[memoryview | bytes]) -> None:
        """Send data to a COPY statement; errors stay psycopg's."""
        with self._connection.cursor() as cursor, cursor.copy(statement.encode()) as copy:
            for piece in data:
                copy.write(piece)

    def begin(self) -> None:
        """Begin a transaction, with the isolation level that the positions rely on."""
        self.run("BEGIN ISOLATION LEVEL READ COMMITTED")

    def commit(self) -> None:
        """Commit. After an error the outcome is unknown: read the position back."""
        self.run("COMMIT")

    def rollback(self) -> None:
        """Discard the changes since `begin`."""
        self.run("ROLLBACK")

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction of its own; an error rolls it back."""
        self.begin()
        try:
            yield
            self.commit()
        except BaseException:
            with contextlib.suppress(Exception):
                self.rollback()
            raise

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Raise psycopg's errors as Tailrace's."""
        try:
            yield
        except psycopg.Error as error:
            # The client's error may quote a value, which is data of a message.
            raise translate_error(error, dsn=self.dsn) from error

    def close(self) -> None:
        """Close the connection. Discards what is not committed."""
        self._connection.close()


def _dsn(settings: PostgresSink) -> str:
    dsn, password = settings.dsn.get_secret_value(), settings.password.get_secret_value()
    try:
        conninfo(dsn)
    except ConfigError as error:
        text = str(error).replace("source.dsn", "`dsn` of the sink")
        raise SinkRefusedError(text, hint=error.hint) from None
    if password:
        dsn = make_conninfo(dsn, password=password)
    _check_password_is_protected(dsn)
    return dsn


def _check_password_is_protected(dsn: str) -> None:
    """Fail if libpq could send a password unencrypted to another machine."""
    known = _environment() | {key: str(value) for key, value in conninfo_to_dict(dsn).items()}
    hosts = (known.get("hostaddr") or known.get("host") or "").split(",")
    local = all(not host or host.startswith(("/", "@")) or is_loopback(host) for host in hosts)
    if known.get("password") and not local and known.get("sslmode") not in _ENCRYPTED:
        raise SinkRefusedError(
            "the password could be sent unencrypted to the target database",
            hint="Add sslmode=verify-full (and sslrootcert=...) or sslmode=require to `dsn`.",
        )


def _environment() -> dict[str, str]:
    """The defaults of libpq, with those that `PG*` variables set."""
    return {
        option.keyword.decode(): option.val.decode(errors="replace")
        for option in pq.Conninfo.get_defaults()
        if option.val
    }
