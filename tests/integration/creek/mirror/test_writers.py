"""A mirror that is started under load, behind `tailrace creek`: in the end it is the source."""

from __future__ import annotations

import contextlib
import random
import threading
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.integration.creek.client.calls import connected, rest
from tests.integration.creek.mirror.following import Following
from tests.integration.mirror.reading import places

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.fix_postgres import Database
    from tests.integration.creek.system import Producer

pytestmark = pytest.mark.long

KEYS = 300
SELECT = "SELECT id, name, big FROM account ORDER BY id"
STATEMENTS = (
    "INSERT INTO account VALUES (%(one)s, 'new', {big}) ON CONFLICT DO NOTHING",
    "UPDATE account SET name = 'x' || %(other)s WHERE id = %(one)s",
    "UPDATE account SET name = 'y', big = {big} WHERE id = %(one)s",
    "UPDATE account SET id = %(other)s + 1000 WHERE id = %(one)s",
    "UPDATE account SET id = %(one)s WHERE id = %(other)s + 1000",
    "DELETE FROM account WHERE id = %(one)s",
)
BIG = "(SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 200))"
"""Large enough to be left out of changes that do not touch it."""


def written(database: Database, seed: int, stopping: threading.Event) -> None:
    """Transactions of some statements, one after another; some are rolled back."""
    chance = random.Random(seed)
    with database.connect() as connection:
        while not stopping.is_set():
            with contextlib.suppress(psycopg.Error, Undone), connection.transaction():
                for _ in range(chance.randint(1, 5)):
                    values = {"one": chance.randrange(KEYS), "other": chance.randrange(KEYS)}
                    statement = chance.choice(STATEMENTS).replace("{big}", BIG)
                    connection.execute(statement.encode(), values)
                if chance.random() < 0.1:
                    raise Undone
            stopping.wait(0.005)


class Undone(Exception):  # noqa: N818 - on purpose
    """A transaction that is given up."""


@contextlib.contextmanager
def load(database: Database, seed: int) -> Iterator[None]:
    """Three writers."""
    stopping = threading.Event()
    threads = [
        threading.Thread(target=written, args=(database, seed + number, stopping))
        for number in range(3)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopping.set()
        for thread in threads:
            thread.join()


def test_started_under_load(
    database: Database, producer: Callable[..., Producer], copy: Database, tmp_path: Path, seed: int
) -> None:
    """GIVEN writers WHEN mirrors begin, and one is stopped and goes on THEN both are the source."""
    database.execute("CREATE TABLE account (id int PRIMARY KEY, name text, big text)")
    sqlite, _, postgresql = places(tmp_path, copy)
    url = f"{producer('public.account').nats}?creek=CREEK"
    with load(database, seed):
        light = Following(url, "account", sqlite.url)
        try:
            light.follows()
            light.wait(lambda: light.status.changes > 200, "changes")
        finally:
            light.stop()
        heavy = Following(url, "account", postgresql.url)
        light = Following(url, "account", sqlite.url)
        try:
            heavy.follows()
            heavy.wait(lambda: heavy.status.changes > 200, "changes")
        finally:
            light.stop()
            heavy.stop()
    rows = database.query(SELECT)
    for place in (sqlite, postgresql):
        running = Following(url, "account", place.url)
        try:
            running.wait(lambda place=place: place.rows(SELECT) == rows, "the copy is the source")
            assert running.status.snapshots == 0
        finally:
            running.stop()


def test_a_change_older_than_the_snapshot_and_not_in_it(
    request: pytest.FixtureRequest,
    database: Database,
    producer: Callable[..., Producer],
    tmp_path: Path,
    copy: Database,
) -> None:
    """GIVEN a commit that is in the stream and that no snapshot sees, because it waits for a
    standby WHEN the table is mirrored THEN the copy has it."""
    database.execute("CREATE TABLE w (id int PRIMARY KEY, v text); INSERT INTO w VALUES (1, 'old')")
    source = producer("public.w")
    database.execute("UPDATE w SET v = 'older'")
    source.caught_up("w", 1)
    # A table's first snapshot waits for those who write to it.
    connected(source.nats, lambda client: rest(client.snapshot(database.name, "w")))
    request.getfixturevalue("hanging")
    connection = database.connect()
    thread = threading.Thread(target=lambda: connection.execute("UPDATE w SET v = 'new'"))
    thread.start()
    place = places(tmp_path, copy)[0]
    running = Following(f"{source.nats}?creek=CREEK", "w", place.url)
    try:
        source.caught_up("w", 2)
        running.follows()
        assert database.query("SELECT v FROM w") == [("older",)]
        running.wait(lambda: place.rows("SELECT v FROM w") == [("new",)], "the change")
        assert running.status.changes == 1
    finally:
        running.stop()
        connection.cancel()
        thread.join()
        connection.close()
