"""Mirrors of a whole system in all targets: every kind of change and of table."""

from __future__ import annotations

import contextlib
import sqlite3
from functools import partial
from typing import TYPE_CHECKING

import duckdb
import psycopg
import pytest

from tests.integration.mirror.reading import Rows, places
from tests.integration.mirror.system import mirror
from tests.jetstream import purge
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fix_postgres import Database
    from tests.integration.client.system import System
    from tests.integration.mirror.reading import Place
    from tests.integration.mirror.system import Running

SETUP = """
CREATE TABLE users (id int PRIMARY KEY, name text, credit numeric, large text, raw bytea, ok bool);
ALTER TABLE users ALTER large SET STORAGE EXTERNAL;
INSERT INTO users SELECT g, 'n' || g, g * 1.10, repeat(g::text, 3000), '\\x00ff', g % 2 = 0
    FROM generate_series(1, 300) g;
CREATE SCHEMA "Odd.Schema";
CREATE TABLE "Odd.Schema"."ta""ble, né%" ("ke y" text, "Where" int, "a.b" text, "\u00e9\"\"'" text,
    PRIMARY KEY ("ke y", "Where"));
INSERT INTO "Odd.Schema"."ta""ble, né%" VALUES ('a\tb\\c', 1, NULL, ''), ('', 2, 'x', E'l\\nm');
CREATE TABLE nokey (a int, b text, d jsonb);
ALTER TABLE nokey REPLICA IDENTITY FULL;
INSERT INTO nokey VALUES (1, 'x', '{"k": 1}'), (1, 'x', '{"k": 1}'), (NULL, NULL, NULL);
CREATE TABLE empty (id int PRIMARY KEY);
"""
ODD = '"Odd.Schema"."ta""ble, né%"'
USERS = "SELECT id, name, credit, large, raw, ok FROM {} ORDER BY id"


class Copies:
    """Mirrors of one table in all targets, compared with the table."""

    def __init__(
        self, system: System, table: tuple[str, str], running: list[tuple[Place, Running]]
    ) -> None:
        self._system = system
        self._table = table
        self.running = running

    def wait_until_equal(self, select: str, what: str) -> None:
        """Wait until every target has the same answer to a query as the source."""
        schema, table = self._table
        quoted = table.replace('"', '""')
        expected = _plain(self._system.database.query(select.format(f'"{schema}"."{quoted}"')))
        for place, running in self.running:
            query = select.format(place.name(schema, table))
            running.wait(partial(_equal, place, query, expected), f"{place.kind}: {what}")


def _equal(place: Place, query: str, expected: list[tuple[str | None, ...]]) -> bool:
    # Columns that do not exist yet.
    with contextlib.suppress(sqlite3.OperationalError, duckdb.Error, psycopg.Error):
        return _plain(place.rows(query)) == expected
    return False


def _plain(rows: Rows) -> list[tuple[str | None, ...]]:
    """Values as text, which is exact for every type that is compared here; NULLs sort alike."""

    def text(value: object) -> str | None:
        if isinstance(value, bool):
            return str(int(value))
        return None if value is None else str(value)

    return sorted((tuple(text(value) for value in row) for row in rows), key=repr)


@contextlib.contextmanager
def copies(
    system: System, schema: str, table: str, where: list[Place], **options: object
) -> Iterator[Copies]:
    with contextlib.ExitStack() as owned:
        name = '"{}"."{}"'.format(schema, table.replace('"', '""'))
        running = [
            (place, owned.enter_context(mirror(system, name, place.url, **options)))
            for place in where
        ]
        for _, mirrored in running:
            mirrored.follows()
        yield Copies(system, (schema, table), running)


def test_every_kind_of_change(system: System, copy: Database, tmp_path: Path) -> None:
    """GIVEN tables with keys, without, with odd names, empty WHEN they change in every possible way
    THEN all targets end with the rows of the source."""
    database = system.database
    database.execute(SETUP)
    system.start()
    where = places(tmp_path, copy)
    with (
        copies(system, "public", "users", where) as users,
        copies(system, "Odd.Schema", 'ta"ble, né%', where) as odd,
        copies(system, "public", "nokey", where) as nokey,
        copies(system, "public", "empty", where) as empty,
    ):
        users.wait_until_equal(USERS, "bootstrap")
        odd.wait_until_equal("SELECT * FROM {} ORDER BY 1", "bootstrap")
        nokey.wait_until_equal("SELECT a, b FROM {} ORDER BY 1, 2", "bootstrap")
        empty.wait_until_equal("SELECT * FROM {}", "bootstrap")

        database.execute("""
            INSERT INTO users VALUES (301, 'new', NULL, repeat('x', 9000), NULL, NULL);
            UPDATE users SET name = NULL, credit = 'NaN' WHERE id = 1;
            DELETE FROM users WHERE id IN (2, 301);
            INSERT INTO users VALUES (2, 'again', 1, 'small', '', true)
        """)
        # Large values that are left alone: by an update, by a moved key, by both.
        database.execute("UPDATE users SET credit = 7 WHERE id BETWEEN 10 AND 40")
        database.execute("UPDATE users SET id = 1000 WHERE id = 11")
        database.execute(
            "UPDATE users SET name = 'both', id = 1001 WHERE id = 12; "
            "UPDATE users SET credit = 8 WHERE id = 1001; UPDATE users SET id = 12 WHERE id = 1001"
        )
        # Two rows change places within one transaction, large values with them.
        database.execute("""
            UPDATE users SET id = -1 WHERE id = 20; UPDATE users SET id = 20 WHERE id = 21;
            UPDATE users SET id = 21 WHERE id = -1
        """)
        users.wait_until_equal(USERS, "changes")
        database.execute(f'UPDATE {ODD} SET "a.b" = E\'q\\t\\\\.\\n\' WHERE "Where" = 1')
        database.execute(f'UPDATE {ODD} SET "ke y" = \'moved\' WHERE "Where" = 2')
        odd.wait_until_equal("SELECT * FROM {} ORDER BY 1", "changes")
        database.execute("DELETE FROM nokey WHERE ctid = (SELECT min(ctid) FROM nokey)")
        database.execute("UPDATE nokey SET b = 'y' WHERE a IS NULL; INSERT INTO nokey VALUES (5)")
        nokey.wait_until_equal("SELECT a, b FROM {} ORDER BY 1, 2", "changes")
        database.execute("INSERT INTO empty VALUES (1), (2)")
        empty.wait_until_equal("SELECT * FROM {} ORDER BY 1", "changes")

        database.execute(
            "BEGIN; TRUNCATE users; INSERT INTO users (id, name) VALUES (5, 'after'); COMMIT"
        )
        # PostgreSQL ends the sessions of the mirrors, which reconnect.
        copy.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'tailrace mirror'"
        )
        database.execute("TRUNCATE nokey")
        users.wait_until_equal(USERS, "truncate")
        nokey.wait_until_equal("SELECT a, b FROM {}", "truncate")

    # The next changes are removed from the stream: the mirror takes a new snapshot by itself.
    before = system.stored() or 0
    database.execute("UPDATE users SET name = 'missed'; INSERT INTO users VALUES (9, 'too')")
    wait_for(lambda: (system.stored() or 0) == before + 2, "the changes are in the stream")
    purge(system.server.url, "CDC")
    with copies(system, "public", "users", where) as users:
        users.wait_until_equal(USERS, "new snapshot")
        for _, running in users.running:
            running.wait(lambda status=running.status: status.snapshots == 1, "a new snapshot")
            assert any("position lost" in text for text in running.events)


@pytest.mark.long
def test_table_alterations(system: System, copy: Database, tmp_path: Path) -> None:
    """GIVEN mirrors WHEN columns are added, renamed, dropped, retyped, or the table created again
    THEN the targets follow, with a new snapshot where there is no event."""
    database = system.database
    database.execute("CREATE TABLE users (id int PRIMARY KEY, name text, gone int)")
    database.execute("INSERT INTO users SELECT g, 'n' || g, g FROM generate_series(1, 100) g")
    system.start()

    def altered(sql: str, then: str) -> None:
        system.forget_snapshots("users")
        database.execute(sql)
        system.publish_schemas()
        database.execute(then)

    with copies(system, "public", "users", places(tmp_path, copy)) as users:
        altered("ALTER TABLE users ADD email text", "UPDATE users SET email = 'e' WHERE id < 5")
        users.wait_until_equal("SELECT id, name, gone, email FROM {} ORDER BY id", "added")
        altered("ALTER TABLE users DROP gone", "UPDATE users SET name = 'd' WHERE id = 7")
        users.wait_until_equal("SELECT id, name, email FROM {} ORDER BY id", "dropped")
        assert [running.status.snapshots for _, running in users.running] == [1, 1, 1]

        altered("ALTER TABLE users RENAME name TO label", "DELETE FROM users WHERE id = 8")
        users.wait_until_equal("SELECT id, label, email FROM {} ORDER BY id", "renamed")
        altered("ALTER TABLE users ADD level int NOT NULL DEFAULT 7", "SELECT 1")
        users.wait_until_equal("SELECT id, label, email, level FROM {} ORDER BY id", "default")
        altered("ALTER TABLE users ALTER level TYPE text USING 'v' || level", "SELECT 1")
        users.wait_until_equal("SELECT id, label, email, level FROM {} ORDER BY id", "another type")
        altered(
            "DROP TABLE users; CREATE TABLE users (id int PRIMARY KEY, label text)",
            "INSERT INTO users VALUES (1, 'again')",
        )
        users.wait_until_equal("SELECT id, label FROM {} ORDER BY id", "created again")
