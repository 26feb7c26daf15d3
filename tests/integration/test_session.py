"""Text output is the same in every session, whatever the role or the database sets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from tailrace.postgres.connection import SESSION_SQL, connect, conninfo

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fix_postgres import Database

PROBE = """
SELECT '2024-02-03 04:05:06+00'::timestamptz::text, '1 day 2 hours'::interval::text,
       0.30000000000000004::float8::text, 'ab'::bytea::text, current_setting('client_encoding')
"""
EXPECTED = ("2024-02-03 04:05:06+00", "1 day 02:00:00", "0.30000000000000004", "\\x6162", "UTF8")


@pytest.fixture
def odd(database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A role, a database and an environment that all want other text."""
    for name, value in {
        "PGTZ": "Asia/Tokyo",
        "PGDATESTYLE": "German",
        "PGOPTIONS": "-c extra_float_digits=-3",
        "PGCLIENTENCODING": "LATIN1",
    }.items():
        monkeypatch.setenv(name, value)
    role = f"odd_{database.name}"
    database.execute(f"CREATE ROLE {role} LOGIN REPLICATION")
    database.execute(f"ALTER ROLE {role} SET intervalstyle = 'iso_8601'")
    database.execute(f"ALTER DATABASE {database.name} SET bytea_output = 'escape'")
    yield database.server.dsn(database.name, user=role)
    database.execute(f"DROP ROLE {role}")


def test_the_settings_would_show(odd: str) -> None:
    with psycopg.connect(odd) as connection:
        assert connection.execute(PROBE).fetchone() != EXPECTED


def test_ordinary_sessions_are_pinned(odd: str) -> None:
    with connect(odd) as connection:
        assert connection.execute(PROBE).fetchone() == EXPECTED


def test_replication_sessions_are_pinned(odd: str) -> None:
    text = conninfo(odd, replication=True)
    with psycopg.connect(text, autocommit=True, cursor_factory=psycopg.ClientCursor) as connection:
        connection.execute(SESSION_SQL)
        assert connection.execute(PROBE).fetchone() == EXPECTED
