"""Connections that give up a server that stops answering.

PostgreSQL ends statements that take too long, and TCP connections whose peer is gone. Neither
notices a server, or a proxy, that hangs with its connections open.
"""

from __future__ import annotations

import contextlib
import math
import time
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg

from tailrace.postgres.connection import SESSION_SQL, conninfo, translate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from psycopg.abc import PQGen

T = TypeVar("T")
_SERVER_SHARE = 2 / 3


class LimitedConnection(psycopg.Connection[Any]):
    """Fails with OperationalError if an answer takes longer than `answer_timeout_s`."""

    answer_timeout_s = math.inf

    def wait(self, gen: PQGen[T], *given: Any, **options: Any) -> T:
        """Everything that waits for the server passes here."""
        limited = _within(self.answer_timeout_s, gen)
        return super().wait(limited, *given, **options)


def connect_limited(dsn: str, *, application_name: str, timeout_s: float) -> LimitedConnection:
    """A session in autocommit mode, of which nothing takes longer than `timeout_s`.

    The server ends a statement before that, so nothing piles up on it, and its error says why.
    """
    text = conninfo(
        dsn, application_name=application_name, connect_timeout_s=max(round(timeout_s), 2)
    )
    try:
        made = LimitedConnection.connect(text, autocommit=True)
    except psycopg.Error as error:
        raise translate(error, dsn=dsn) from error
    try:
        made.answer_timeout_s = timeout_s
        made.execute(SESSION_SQL.encode())
        made.execute(f"SET statement_timeout TO {round(timeout_s * _SERVER_SHARE * 1000)}".encode())
    except psycopg.Error as error:
        made.close()
        raise translate(error, dsn=dsn) from error
    return made


@contextlib.contextmanager
def limited_session(
    dsn: str, *, application_name: str, timeout_s: float
) -> Iterator[LimitedConnection]:
    """The same for one block, which gets errors of psycopg as errors of Tailrace."""
    connection = connect_limited(dsn, application_name=application_name, timeout_s=timeout_s)
    try:
        yield connection
    except psycopg.Error as error:
        raise translate(error, dsn=dsn) from error
    finally:
        with contextlib.suppress(psycopg.Error):
            connection.close()


def _within(timeout_s: float, gen: PQGen[T]) -> PQGen[T]:
    """The same exchange with the server, which fails after a time.

    psycopg resumes it several times per second, also if there is nothing to read or to write.
    """
    end_s = time.monotonic() + timeout_s
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if not ready and time.monotonic() > end_s:
                raise psycopg.OperationalError(f"no answer within {timeout_s:g} s")
            wanted = gen.send(ready)
    except StopIteration as ended:
        answer: T = ended.value
        return answer
