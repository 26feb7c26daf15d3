"""COPY without libpq returns the same rows and errors as libpq, and leaves the session usable."""

from __future__ import annotations

import signal
from contextlib import closing
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg import sql
from psycopg.pq import TransactionStatus

from tailrace.errors import PostgresRefusedError, PostgresUnreachableError, TailraceError
from tailrace.postgres.connection import connect
from tailrace.snapshot.cells import cells
from tailrace.snapshot.copy import by_libpq, copy, lines
from tailrace.snapshot.receive import possible, receive
from tailrace.testing import TcpProxy
from tests.corpus import prepared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from psycopg import Connection, pq

    from tailrace.snapshot.lines import Lines
    from tests.fix_postgres import Database

    Way = Callable[[pq.abc.PGconn, str], Iterator[Lines]]

WAYS = pytest.mark.parametrize("way", [receive, by_libpq])
# More than all buffers on the way hold.
MANY = "SELECT n, repeat('x', 100) FROM generate_series(1, 200000) n"


@pytest.fixture(params=["tcp", "unix"])
def session(request: pytest.FixtureRequest, database: Database) -> Iterator[Connection]:
    dsn = database.dsn if request.param == "tcp" else database.socket_dsn
    with closing(connect(dsn)) as connection:
        assert possible(connection.pgconn)
        yield connection


def text(way: Way, connection: Connection, select: str) -> bytes:
    found = way(connection.pgconn, f"COPY ({select}) TO STDOUT")
    return b"".join(bytes(each.text()) for each in found)


def value(connection: Connection, query: str) -> object:
    row = connection.execute(query.encode()).fetchone()
    return row and row[0]


def status(connection: Connection) -> TransactionStatus:
    """The session's state according to libpq."""
    return connection.info.transaction_status


@pytest.mark.parametrize(
    "select",
    [
        "SELECT 1 WHERE false",
        "SELECT FROM generate_series(1, 1000)",
        "SELECT n FROM generate_series(1, 300000) n",
        "SELECT NULL::text, '' FROM generate_series(1, 3)",
        MANY,
        # Lengths of all sizes: most of them have bytes that are tabs or newlines in a text.
        "SELECT n, repeat('x', n % 3000) FROM generate_series(1, 6000) n",
        "SELECT n, repeat('x', (n % 3) * 1500000) FROM generate_series(1, 20) n",
    ],
)
def test_both_readers_return_the_same(session: Connection, select: str) -> None:
    assert text(receive, session, select) == text(by_libpq, session, select)
    assert value(session, "SELECT 7") == 7


def test_every_type(database: Database, session: Connection) -> None:
    kinds = prepared(database)
    values = [
        sql.Literal(each).as_string(session) + f"::{kind}"
        for kind, literals in kinds.items()
        for each in literals
    ]
    select = f"SELECT {', '.join(values)}"
    [ours], [libpq] = (
        [cells(each, len(values)) for each in way(session.pgconn, f"COPY ({select}) TO STDOUT")]
        for way in (receive, by_libpq)
    )
    assert ours == libpq
    assert len(ours) == len(values)


def test_the_transaction_continues(session: Connection) -> None:
    session.execute("BEGIN")
    before = value(session, "SELECT pg_current_xact_id()::text")
    assert sum(count for count, _ in copy(session, MANY, 2)) == 200_000
    assert status(session) is TransactionStatus.INTRANS
    assert value(session, "SELECT pg_current_xact_id()::text") == before
    assert sum(count for count, _ in lines(session, MANY)) == 200_000
    session.execute("COMMIT")
    assert status(session) is TransactionStatus.IDLE


@WAYS
@pytest.mark.parametrize(
    ("select", "kind"),
    [
        ("SELECT 1 / (n - 500) FROM generate_series(1, 1000) n", PostgresRefusedError),
        ("SELECT 1 / (n - 150000) FROM generate_series(1, 200000) n", PostgresRefusedError),
        ("SELECT * FROM nowhere", PostgresRefusedError),
        ("SELECT nonsense (", PostgresRefusedError),
    ],
)
def test_an_error_of_the_statement(
    session: Connection, way: Way, select: str, kind: type[TailraceError]
) -> None:
    with pytest.raises(kind, match=r"division by zero|does not exist|syntax error"):
        text(way, session, select)
    assert status(session) is TransactionStatus.IDLE
    assert value(session, "SELECT 7") == 7
    session.execute("BEGIN")
    with pytest.raises(kind):
        text(way, session, select)
    assert status(session) is TransactionStatus.INERROR
    session.execute("ROLLBACK")
    assert value(session, "SELECT 7") == 7


def test_both_readers_have_the_same_error_texts(session: Connection) -> None:
    session.execute("CREATE TEMP TABLE t (id int, v text); INSERT INTO t VALUES (1, 'x')")
    for select in ("SELECT v::int FROM t", "SELECT id / 0 FROM t", "SELECT '{'::json FROM t"):
        found = []
        for way in (receive, by_libpq):
            with pytest.raises(TailraceError) as caught:
                text(way, session, select)
            found.append(caught.value)
        ours, libpq = found
        assert (type(ours), ours.code, ours.hint) == (type(libpq), libpq.code, libpq.hint)
        assert str(libpq).startswith(str(ours).split(":")[0].split(" (SQLSTATE")[0])


@WAYS
def test_a_session_that_is_terminated_during_copy(
    database: Database, session: Connection, way: Way
) -> None:
    found = way(session.pgconn, f"COPY ({MANY}) TO STDOUT")
    next(found)
    database.query("SELECT pg_terminate_backend(%s, 10000)", session.info.backend_pid)
    with pytest.raises(PostgresUnreachableError):
        list(found)
    assert session.broken


@WAYS
def test_a_session_that_is_terminated_before_copy(
    database: Database, session: Connection, way: Way
) -> None:
    database.query("SELECT pg_terminate_backend(%s, 10000)", session.info.backend_pid)
    with pytest.raises(PostgresUnreachableError):
        text(way, session, MANY)
    assert session.broken


@WAYS
def test_a_connection_that_is_cut(database: Database, way: Way) -> None:
    server = database.server
    with TcpProxy("127.0.0.1", server.port) as proxy:
        through = database.dsn.replace(f"port={server.port}", f"port={proxy.port}")
        with closing(connect(through)) as session:
            found = way(session.pgconn, f"COPY ({MANY}) TO STDOUT")
            next(found)
            proxy.cut()
            with pytest.raises(PostgresUnreachableError):
                list(found)
            assert session.broken


def test_other_messages_between_rows(session: Connection) -> None:
    session.execute(
        """
        CREATE FUNCTION pg_temp.told(n int) RETURNS int LANGUAGE plpgsql AS $$
        BEGIN
            IF n % 1000 < 2 THEN RAISE NOTICE E'a\tb\nd%', n; END IF;
            PERFORM set_config('application_name', 'row ' || n, false);
            RETURN n;
        END $$
        """
    )
    expected = b"".join(b"%d\tx\n" % n for n in range(1, 100_001))
    select = "SELECT pg_temp.told(n), 'x' FROM generate_series(1, 100000) n"
    assert text(receive, session, select) == expected
    found = [image[0].values for _, image in copy(session, select, 2) if image[0] is not None]
    assert sum(map(len, found)) == 100_000
    assert value(session, "SELECT current_setting('application_name')") == "row 100000"


def test_a_session_that_is_left_during_copy_is_closed(session: Connection) -> None:
    found = copy(session, MANY, 2)
    next(found)
    found.close()  # type: ignore[attr-defined]
    assert session.broken
    with pytest.raises(psycopg.OperationalError):
        session.execute("SELECT 7")


def test_a_session_that_is_left_at_the_end_can_be_used(session: Connection) -> None:
    found = copy(session, "SELECT 1", 1)
    next(found)
    found.close()  # type: ignore[attr-defined]
    assert value(session, "SELECT 7") == 7


def test_waiting_can_be_interrupted(session: Connection) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - the alarm belongs inside
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            text(receive, session, "SELECT pg_sleep(100)")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert session.broken


def test_not_possible_during_another_statement(session: Connection) -> None:
    session.pgconn.send_query(b"SELECT 1")
    assert not possible(session.pgconn)
    while session.pgconn.get_result() is not None:
        pass
    assert possible(session.pgconn)
    with session.pipeline():
        assert not possible(session.pgconn)
