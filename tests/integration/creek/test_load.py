"""Tables that join, leave and change under load on other tables."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tailrace.encode.creek import schema as creek
from tailrace.position import Lsn
from tests.jetstream import received
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.fix_postgres import Database
    from tests.integration.creek.system import Producer

pytestmark = pytest.mark.long

_RATE, _TOGETHER = 1000, 20


@contextlib.contextmanager
def written(database: Database) -> Iterator[list[int]]:
    """A thousand rows a second into `busy`, in transactions of some; how many were written."""
    stopping, count = threading.Event(), [0]

    def write() -> None:
        began = time.monotonic()
        with database.connect() as connection:
            while not stopping.is_set():
                last = count[0] + _TOGETHER - 1
                sql = f"INSERT INTO busy SELECT g FROM generate_series({count[0]}, {last}) g"
                connection.execute(sql.encode())
                count[0] += _TOGETHER
                stopping.wait(max(began + count[0] / _RATE - time.monotonic(), 0))

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield count
    finally:
        stopping.set()
        thread.join()


def lsn_now(database: Database) -> Lsn:
    ((text,),) = database.query("SELECT pg_current_wal_insert_lsn()::text")
    return Lsn.parse(text)


def test_tables_join_and_leave(database: Database, producer: Callable[..., Producer]) -> None:
    database.execute(
        "CREATE TABLE busy (id int PRIMARY KEY); CREATE TABLE leaving (id int PRIMARY KEY);"
        "CREATE TABLE joining (id int PRIMARY KEY); INSERT INTO joining VALUES (1)"
    )
    running = producer("public.busy", "public.leaving")
    with written(database) as count:
        database.execute("INSERT INTO leaving VALUES (1)")
        time.sleep(1)
        before = lsn_now(database)
        database.query("SELECT _creek.add_table('creek_publication', 'public.joining')")
        after = lsn_now(database)
        database.execute("INSERT INTO joining VALUES (2), (3)")
        database.query("SELECT _creek.remove_table('creek_publication', 'public.leaving')")
        database.execute("INSERT INTO leaving VALUES (2)")
        time.sleep(2)
    found = running.caught_up("busy", count[0])
    assert count[0] > _RATE
    assert [each["after"]["id"] for each in found] == list(range(count[0]))
    joined = running.caught_up("joining", 2)
    assert [each["after"]["id"] for each in joined] == [2, 3]
    assert [each["after"]["id"] for each in running.caught_up("leaving", 1)] == [1]

    def published() -> list[dict[str, Any]]:
        return [
            msgspec.json.decode(creek.unpacked(each.payload) or b"")
            for each in received(running.nats, "CREEK_schema")
            if each.subject == running.subject("schema", "joining")
        ]

    stated = Lsn.parse(wait_for(published, "the schema of the new table")[0]["lsn"])
    # The commit, or the catalog read that found the table if capture is five seconds late.
    assert before <= stated <= lsn_now(database)
    assert stated <= after or "exact=False" in running.output or '"exact": false' in running.output


def test_columns_change(database: Database, producer: Callable[..., Producer]) -> None:
    database.execute(
        "CREATE TABLE busy (id int PRIMARY KEY); CREATE TABLE changing (id int PRIMARY KEY, v text)"
    )
    running = producer("public.busy", "public.changing")
    changes = (
        "ALTER TABLE changing ADD w int DEFAULT 7",
        "ALTER TABLE changing ALTER v TYPE int USING v::int",
        "ALTER TABLE changing DROP v",
        "ALTER TABLE changing RENAME w TO x",
    )
    with written(database) as count:
        for number, change in enumerate(("SELECT", *changes)):
            database.execute(change)
            database.execute(f"INSERT INTO changing (id) VALUES ({number * 2})")
            if number < 3:
                database.execute(f"INSERT INTO changing (id, v) VALUES ({number * 2 + 1}, '5')")
    found = running.caught_up("changing", 8)
    assert [each["after"] for each in found] == [
        {"id": 0, "v": None}, {"id": 1, "v": "5"},
        {"id": 2, "v": None, "w": 7}, {"id": 3, "v": "5", "w": 7},
        {"id": 4, "v": None, "w": 7}, {"id": 5, "v": 5, "w": 7},
        {"id": 6, "w": 7}, {"id": 8, "x": 7},
    ]  # fmt: skip
    assert len({each["fingerprint"] for each in found}) == 5
    busy = running.caught_up("busy", count[0])
    assert [each["after"]["id"] for each in busy] == list(range(count[0]))
    # Old messages are read with the schemas they name after everything was started again.
    assert running.stop() == 0, running.output
    running.start()
    assert running.events("changing") == found
