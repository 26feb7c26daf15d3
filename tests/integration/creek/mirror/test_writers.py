"""A mirror that is started under load, after `tailrace creek`: in the end it equals the source."""

from __future__ import annotations

import contextlib
import random
import threading
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.integration.creek.client.calls import rest, run_connected
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
"""Large enough for TOAST: changes that do not touch it do not have it."""


def write(database: Database, seed: int, stopping: threading.Event) -> None:
    """Run random transactions until stopped; some are rolled back."""
    randomness = random.Random(seed)
    with database.connect() as connection:
        while not stopping.is_set():
            with contextlib.suppress(psycopg.Error, RolledBack), connection.transaction():
                for _ in range(randomness.randint(1, 5)):
                    values = {
                        "one": randomness.randrange(KEYS),
                        "other": randomness.randrange(KEYS),
                    }
                    statement = randomness.choice(STATEMENTS).replace("{big}", BIG)
                    connection.execute(statement.encode(), values)
                if randomness.random() < 0.1:
                    raise RolledBack
            stopping.wait(0.005)


class RolledBack(Exception):  # noqa: N818 - on purpose
    """Rolls a transaction back."""


@contextlib.contextmanager
def load(database: Database, seed: int) -> Iterator[None]:
    """Three writers."""
    stopping = threading.Event()
    threads = [
        threading.Thread(target=write, args=(database, seed + number, stopping))
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


def test_mirror_that_starts_under_load_equals_the_source(
    database: Database, producer: Callable[..., Producer], copy: Database, tmp_path: Path, seed: int
) -> None:
    """GIVEN writers WHEN mirrors start, and one stops and resumes THEN both equal the source."""
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
            running.wait(
                lambda place=place: place.rows(SELECT) == rows, "the copy equals its source"
            )
            assert running.status.snapshots == 0
        finally:
            running.stop()


def test_change_before_the_snapshot_that_the_snapshot_does_not_see(
    request: pytest.FixtureRequest,
    database: Database,
    producer: Callable[..., Producer],
    tmp_path: Path,
    copy: Database,
) -> None:
    """GIVEN a commit in the stream that no snapshot sees, because it waits for a standby WHEN the
    table is mirrored THEN the copy has it."""
    database.execute("CREATE TABLE w (id int PRIMARY KEY, v text); INSERT INTO w VALUES (1, 'old')")
    source = producer("public.w")
    database.execute("UPDATE w SET v = 'older'")
    source.caught_up("w", 1)
    # The first snapshot of a table waits for its writers.
    run_connected(source.nats, lambda client: rest(client.snapshot(database.name, "w")))
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
        running.wait(lambda: running.status.changes == 1, "one change")
    finally:
        running.stop()
        connection.cancel()
        thread.join()
        connection.close()
