"""PostgreSQL's own count: committed changes of all sessions, and nothing else."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import psycopg
import pytest

from tailrace.change import Op
from tailrace.cli.demo.tally import Tally
from tailrace.testing import SampleShop
from tailrace.testing.shop import TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from psycopg import Connection

    from tests.fix_postgres import Database


@pytest.fixture
def connection(database: Database) -> Iterator[Connection]:
    with psycopg.connect(database.socket_dsn, autocommit=True) as made:
        yield made


def test_the_changes_of_the_shop_are_counted(connection: Connection) -> None:
    shop = SampleShop(connection)
    shop.create()
    tally = Tally(connection)
    tally.create(TABLES)
    for _ in range(300):
        shop.step()
    assert shop.rollbacks
    total = tally.total()
    counts = tally.close("end")
    for op in (Op.INSERT, Op.UPDATE, Op.DELETE, Op.TRUNCATE):
        assert sum(n for (_, found), n in counts.items() if found is op) == shop.committed[op]
    assert total == counts.total()


def test_sessions_do_not_wait_for_each_other(database: Database, connection: Connection) -> None:
    connection.execute("CREATE TABLE t (id int)")
    tally = Tally(connection)
    tally.create(["t"])
    with psycopg.connect(database.socket_dsn) as other:
        other.execute("INSERT INTO t VALUES (1)")
        connection.execute("INSERT INTO t VALUES (2)")
        assert tally.total() == 1
        other.commit()
        assert tally.total() == 2


def test_an_idle_transaction_is_ended(database: Database, connection: Connection) -> None:
    connection.execute("CREATE TABLE t (id int)")
    tally = Tally(connection)
    tally.create(["t"])
    with psycopg.connect(database.socket_dsn) as other:
        other.execute("INSERT INTO t VALUES (1)")
        assert tally.close("end") == {}
        with pytest.raises(psycopg.OperationalError):
            other.execute("SELECT 1")


def test_the_message_is_where_the_count_was_taken(
    database: Database, connection: Connection
) -> None:
    """GIVEN sessions that go on WHEN it closes THEN the stream up to the message has that count."""
    connection.execute("CREATE TABLE t (id int)")
    tally = Tally(connection)
    tally.create(["t"])
    connection.execute("CREATE PUBLICATION tally FOR TABLE t")
    connection.execute("SELECT pg_create_logical_replication_slot('tally', 'pgoutput')")
    stop = threading.Event()

    def insert() -> None:
        with psycopg.connect(database.socket_dsn, autocommit=True) as own:
            while not stop.is_set():
                own.execute("INSERT INTO t VALUES (1)")

    threads = [threading.Thread(target=insert) for _ in range(3)]
    for thread in threads:
        thread.start()
    while tally.total() < 100:
        pass
    counted = tally.close("end").total()
    after = tally.total()
    while tally.total() == after:
        pass
    stop.set()
    for thread in threads:
        thread.join()
    stream = connection.execute(
        "SELECT chr(get_byte(data, 0)) FROM pg_logical_slot_get_binary_changes("
        "'tally', NULL, NULL, 'proto_version', '1', 'publication_names', 'tally', 'messages', 'on')"
    ).fetchall()
    changes = "".join(kind for (kind,) in stream if kind in "IM")
    assert changes.index("M") == counted
    assert changes.count("I") > counted
