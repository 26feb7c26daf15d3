"""The session that reads pages: what PostgreSQL accepts as a condition, and its time limit."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from psycopg.conninfo import make_conninfo

from tailrace.backfill import page
from tailrace.errors import ConfigError, PostgresRefusedError
from tailrace.postgres.connection import connect
from tailrace.postgres.names import TableName

if TYPE_CHECKING:
    from collections.abc import Iterator

    from psycopg import Connection

    from tests.fix_postgres import Database

ITEMS = TableName("public", "items")


@pytest.fixture
def connection(database: Database) -> Iterator[Connection]:
    database.execute(
        "CREATE TABLE items (id int PRIMARY KEY, v text, at timestamptz, d jsonb, tags text[]);"
        "INSERT INTO items SELECT g, 'V' || g, now(), '{\"a\": 1}', '{x}'"
        " FROM generate_series(1, 10) g;"
        "CREATE PUBLICATION p FOR TABLE items"
    )
    with closing(connect(database.dsn)) as connection:
        yield connection


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ("", 10),
        ("id % 2 = 0", 5),
        ("id>-1 AND id <= +3", 3),
        ("lower(v) IN ('v1', 'v2') OR v ILIKE 'v3%'", 3),
        ("at > now() - interval '1 day' AND at::date >= date '2020-01-01'", 10),
        ("extract(year FROM at AT TIME ZONE 'UTC') < 2020", 0),
        ("d->>'a' = '1' AND d @> '{\"a\": 1}' AND tags && ARRAY['x']", 10),
        ("CASE WHEN id = 1 THEN 'a' ELSE 'b' END = 'a'", 1),
        ("id = ANY('{1,2,77}') AND CAST(id AS numeric(10,2)) < 2.5", 2),
        ("coalesce(nullif(v, 'V1'), 'none') IS DISTINCT FROM 'none'", 9),
        ("(id, v) > (5, 'a') AND id NOT BETWEEN 7 AND 9", 2),
        ("v = 'C:\\'", 0),
    ],
)
def test_conditions_mean_what_they_mean_in_sql(
    connection: Connection, where: str, rows: int
) -> None:
    with page.snapshot(connection, "p", ITEMS) as snapshot:
        page.check(connection, snapshot, where)
        found = page.rows(connection, snapshot, where=where, cursor=(), limit=0)
        assert sum(count for count, _ in found) == rows
    own = f"SELECT count(*) FROM items WHERE {where or 'true'}"
    connection.execute("SET search_path TO public")
    assert connection.execute(own.encode()).fetchall() == [(rows,)]


def test_no_query_holds_an_unchecked_condition(connection: Connection) -> None:
    with page.snapshot(connection, "p", ITEMS) as snapshot:
        for where in ("pg_sleep(0) IS NULL", "true) OR (true", "id = (SELECT 1)"):
            with pytest.raises(ConfigError, match="invalid condition"):
                snapshot.select(where=where)


def test_a_query_has_a_time_limit(connection: Connection) -> None:
    """GIVEN a limit WHEN a query exceeds it THEN the error is final, as a retry would fail too."""
    with (
        pytest.raises(
            PostgresRefusedError, match=r"a query on public\.items took longer"
        ) as caught,
        page.snapshot(connection, "p", ITEMS, timeout_s=1),
    ):
        connection.execute("SELECT pg_sleep(600)")
    assert "statement_timeout_s" in caught.value.hint
    assert not caught.value.transient


@pytest.mark.parametrize(("role", "effective"), [("0", "1h"), ("2h", "1h"), ("30min", "30min")])
def test_a_shorter_limit_of_the_role_stays(
    connection: Connection, role: str, effective: str
) -> None:
    connection.execute(f"SET statement_timeout TO '{role}'".encode())
    with page.snapshot(connection, "p", ITEMS, timeout_s=3600):
        assert connection.execute("SHOW statement_timeout").fetchone() == (effective,)


def test_a_policy_that_hides_rows_is_an_error(database: Database, connection: Connection) -> None:
    role = f"reader_{database.name}"
    connection.execute(
        f"""
        CREATE ROLE {role} LOGIN; GRANT SELECT ON public.items TO {role};
        ALTER TABLE public.items ENABLE ROW LEVEL SECURITY;
        CREATE POLICY one ON public.items USING (id = 1)
    """.encode()
    )
    try:
        with (
            closing(connect(make_conninfo(database.dsn, user=role))) as restricted,
            pytest.raises(PostgresRefusedError, match="row-level security"),
            page.snapshot(restricted, "p", ITEMS) as snapshot,
        ):
            list(page.rows(restricted, snapshot, where="", cursor=(), limit=0))
    finally:
        connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())
