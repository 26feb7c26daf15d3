"""Fixtures for real PostgreSQL: a server a session, a database a test."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.testing import EmbeddedPostgres
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg


@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    """A database of its own for one test.

    Each call has a connection of its own, so a test may stop and start the server in between.
    """

    name: str
    server: EmbeddedPostgres

    @property
    def dsn(self) -> str:
        """Over TCP."""
        return self.server.dsn(self.name)

    @property
    def socket_dsn(self) -> str:
        """Over the unix socket."""
        return self.server.dsn(self.name, tcp=False)

    def connect(self) -> psycopg.Connection:
        """A superuser connection in autocommit mode; the caller closes it."""
        return self.server.connect(self.name)

    def execute(self, sql: str, *params: object) -> None:
        """Run `sql`: one statement, or several without parameters."""
        with self.connect() as connection:
            connection.execute(sql.encode(), params or None)

    def query(self, sql: str, *params: object) -> list[tuple[Any, ...]]:
        """The rows of `sql`."""
        with self.connect() as connection:
            return connection.execute(sql.encode(), params or None).fetchall()


@pytest.fixture(scope="session")
def postgres() -> Iterator[EmbeddedPostgres]:
    """PostgreSQL 18, shared: a test that stops it starts it again."""
    with EmbeddedPostgres(18) as server:
        yield server


@pytest.fixture(scope="session")
def postgres16() -> Iterator[EmbeddedPostgres]:
    """PostgreSQL 16, started when the first test asks for it."""
    with EmbeddedPostgres(16) as server:
        yield server


@pytest.fixture(scope="session")
def postgres15() -> Iterator[EmbeddedPostgres]:
    """PostgreSQL 15, where it is installed."""
    if not EmbeddedPostgres.installed(15):
        pytest.skip("PostgreSQL 15 is not installed: apt-get install postgresql-15")
    with EmbeddedPostgres(15) as server:
        yield server


@pytest.fixture
def database(postgres: EmbeddedPostgres) -> Iterator[Database]:
    """An empty database on PostgreSQL 18; it goes away with its slots."""
    yield from _database(postgres)


@pytest.fixture
def database16(postgres16: EmbeddedPostgres) -> Iterator[Database]:
    """An empty database on PostgreSQL 16; it goes away with its slots."""
    yield from _database(postgres16)


@pytest.fixture
def database15(postgres15: EmbeddedPostgres) -> Iterator[Database]:
    """An empty database on PostgreSQL 15; it goes away with its slots."""
    yield from _database(postgres15)


def _database(server: EmbeddedPostgres) -> Iterator[Database]:
    name = server.create_database("test")
    try:
        yield Database(name=name, server=server)
    finally:
        server.drop_database(name)


@pytest.fixture
def hanging(database: Database) -> Iterator[None]:
    """Commits are in the log and not visible: they wait for a standby that never comes."""

    def setting(command: str) -> None:
        with database.connect() as connection:
            connection.execute("SET synchronous_commit TO local")
            connection.execute(command.encode())
            connection.execute("SELECT pg_reload_conf()")

    setting("ALTER SYSTEM SET synchronous_standby_names TO nobody")
    try:
        # Sessions know the setting before the checkpointer, which makes commits wait.
        wait_for(lambda: _commit_hangs(database), "commits to wait for a standby")
        yield
    finally:
        setting("ALTER SYSTEM RESET synchronous_standby_names")


_COMMITS = "CREATE TEMP TABLE probe () ON COMMIT DROP"


def _commit_hangs(database: Database) -> bool:
    waiting = "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event = 'SyncRep'"
    with database.connect() as connection:
        pid = connection.info.backend_pid
        commit = threading.Thread(target=connection.execute, args=(_COMMITS,))
        commit.start()
        while commit.is_alive() and not database.query(waiting, pid):
            pass
        hangs = commit.is_alive()
        connection.cancel()
        commit.join()
    return hangs


@pytest.fixture
def copy(postgres: EmbeddedPostgres) -> Iterator[Database]:
    """An empty database to mirror into."""
    name = postgres.create_database("copy")
    try:
        yield Database(name=name, server=postgres)
    finally:
        postgres.drop_database(name)
