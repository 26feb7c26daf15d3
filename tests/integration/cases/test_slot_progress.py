"""P54 to P57: the slot moves with WAL that holds nothing for us, and a session outlives silence."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from tailrace.log import awaited
from tailrace.log.store import LocalStore
from tailrace.position import Lsn
from tailrace.postgres.bootstrap import log_exists
from tests.integration.cases.replay import inserted
from tests.integration.cases.running import (
    confirmed,
    restart,
    running,
    settle,
    wal_end,
    walsender_pid,
)
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import psycopg

    from tests.fix_capture import Captured
    from tests.fix_postgres import Database

    Capturing = Callable[..., Captured]

TABLE = "CREATE TABLE t (id int PRIMARY KEY, v text);"


@pytest.fixture
def elsewhere(db: Database) -> Iterator[psycopg.Connection]:
    """A session in another database of the same server."""
    name = db.server.create_database("elsewhere")
    connection = db.server.connect(name)
    connection.execute("CREATE TABLE busy (v text)")
    yield connection
    connection.close()
    db.server.drop_database(name)


def make_unpublished_wal(connection: psycopg.Connection) -> None:
    connection.execute("INSERT INTO busy SELECT repeat('x', 1000) FROM generate_series(1, 500)")


def test_capture_advances_an_idle_log_to_a_requested_lsn(db: Database, capture: Capturing) -> None:
    """GIVEN a database that writes nothing of ours WHEN an LSN is waited for THEN the log is there
    long before it would be by itself."""
    db.execute("CREATE TABLE mine (id int); CREATE TABLE others (id int)")
    db.execute("CREATE PUBLICATION tailrace FOR TABLE mine")
    captured = capture(db, capture={"progress_s": 3600})
    with running(captured):
        db.execute("INSERT INTO mine VALUES (1)")
        wait_for(lambda: log_exists(captured.folder), "a log")
        for number in range(3):
            db.execute("INSERT INTO others VALUES (%s)", number)
            end = Lsn.parse(db.query("SELECT pg_current_wal_insert_lsn()::text")[0][0])
            awaited.ask(LocalStore(captured.folder), end)
            wait_for(lambda: captured.log.end().end_lsn >= end, "the log is there")  # noqa: B023


def test_p54_unpublished_changes_do_not_hold_the_slot(db: Database, capture: Capturing) -> None:
    db.execute(TABLE + "CREATE TABLE busy (v text); CREATE PUBLICATION tailrace FOR TABLE t")
    captured = capture(db, capture={"progress_s": 0.1})
    captured.catch_up()
    with running(captured), db.connect() as connection:
        make_unpublished_wal(connection)
        target = wal_end(db)
        wait_for(lambda: confirmed(captured) >= target, "the slot moves past it")
        assert captured.log.end().end_lsn >= target
    db.execute("INSERT INTO t VALUES (1, 'a')")
    assert inserted(captured.catch_up()) == [(b"1", b"a")]


def test_p56_traffic_of_another_database_does_not_hold_the_slot(
    db: Database, capture: Capturing, elsewhere: psycopg.Connection
) -> None:
    db.execute(TABLE)
    captured = capture(db, capture={"progress_s": 0.1})
    captured.catch_up()
    before = restart(captured)
    with running(captured):
        make_unpublished_wal(elsewhere)
        target = wal_end(db)
        wait_for(lambda: confirmed(captured) >= target, "the slot moves past it")

        def released() -> bool:
            elsewhere.execute("CHECKPOINT")
            return restart(captured) > before

        wait_for(released, "PostgreSQL may remove the WAL")
    # What was acknowledged is in the log as progress: the next start sees no gap.
    assert confirmed(captured) <= captured.log.end().end_lsn
    assert captured.catch_up() == []


def test_p54_keepalives_do_not_move_past_an_open_transaction(
    db: Database, capture: Capturing, elsewhere: psycopg.Connection
) -> None:
    db.execute(TABLE)
    captured = capture(db, capture={"progress_s": 0.05})
    captured.catch_up()
    with running(captured), db.connect() as session:
        session.execute("BEGIN; INSERT INTO t VALUES (1, 'early')")
        make_unpublished_wal(elsewhere)
        target = wal_end(db)
        wait_for(lambda: confirmed(captured) >= target, "the slot moves past it")
        session.execute("INSERT INTO t VALUES (2, 'late')")
        session.execute("COMMIT")
        settle(captured)
    rows = [change for change in captured.changes() if change.relation]
    assert inserted(rows) == [(b"1", b"early"), (b"2", b"late")]


@pytest.mark.parametrize("timeout_ms", [6000, 0])
def test_p55_idle_session_is_not_cut_off(
    database: Database, capture: Capturing, timeout_ms: int
) -> None:
    """GIVEN a server that cuts a silent client off soon, or never,
    WHEN nothing happens for longer than that, THEN the same connection still does its work."""
    dsn = f"{database.socket_dsn} options='-c wal_sender_timeout={timeout_ms}'"
    database.execute(TABLE + "CREATE TABLE busy (v text); CREATE PUBLICATION tailrace FOR TABLE t")
    captured = capture(database, source={"dsn": dsn}, capture={"progress_s": 0.1})
    captured.catch_up()
    older = "SELECT FROM pg_stat_activity WHERE pid = %s AND now() - backend_start > %s"
    age = timedelta(seconds=max(1.5 * timeout_ms / 1000, 1))
    with running(captured), database.connect() as connection:

        def outlives_its_timeout() -> bool:
            pid = wait_for(lambda: walsender_pid(captured), "the session begins")
            wait_for(
                lambda: walsender_pid(captured) != pid or database.query(older, pid, age),
                "the session has outlived its timeout",
            )
            make_unpublished_wal(connection)
            target = wal_end(database)
            wait_for(lambda: confirmed(captured) >= target, "the slot moves")
            return walsender_pid(captured) == pid

        # A machine that stalls may cut a session off, but not every one.
        assert any(outlives_its_timeout() for _ in range(5))
        database.execute("INSERT INTO t VALUES (1, 'a')")
        settle(captured)
    assert inserted([c for c in captured.changes() if c.relation]) == [(b"1", b"a")]


def test_p57_open_transaction_holds_the_restart_point_only(
    db: Database, capture: Capturing
) -> None:
    db.execute(TABLE)
    captured = capture(db)
    captured.catch_up()
    with db.connect() as session:
        session.execute("BEGIN; INSERT INTO t VALUES (1, 'long')")
        opened = wal_end(db)
        for number in range(2, 6):
            before = confirmed(captured)
            db.execute(f"INSERT INTO t VALUES ({number}, 'short'); CHECKPOINT")
            captured.catch_up()
            assert confirmed(captured) > before
        assert restart(captured) <= opened < confirmed(captured)
        session.execute("COMMIT")
    assert inserted(captured.catch_up()) == [(b"1", b"long")]
