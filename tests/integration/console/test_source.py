"""The pages that read PostgreSQL, with a PostgreSQL that lets them wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.unit.console.house import TOKEN, House, Visitor

if TYPE_CHECKING:
    from pathlib import Path

    import httpx

    from tests.fix_postgres import Database


def ask(database: Database, data: Path, page: str) -> httpx.Response:
    """A page of a new process: it has no error from before."""
    house = House(data, source={"dsn": database.dsn})
    return Visitor(house).get(f"/api/v1/{page}", authorization=f"Bearer {TOKEN}")


def test_a_locked_table_ends_with_a_time_limit(database: Database, tmp_path: Path) -> None:
    """GIVEN a table that another session has locked WHEN the page Tables is read THEN it says after
    some seconds that PostgreSQL has not answered; and WHEN the lock is gone THEN it has the table,
    and no session of the console waits."""
    database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION tailrace FOR TABLE orders")
    with database.connect() as other, other.transaction():
        other.execute("LOCK TABLE orders IN ACCESS EXCLUSIVE MODE")
        answer = ask(database, tmp_path / "locked", "tables")
        assert answer.status_code == 502, answer.text
        assert "UNREACHABLE" in answer.json()["error"]
        assert ask(database, tmp_path / "doctor", "doctor").status_code in (200, 502)
    found = ask(database, tmp_path / "free", "tables")
    assert [each["name"] for each in found.json()["tables"]] == ["orders"]
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tailrace console'"
    assert database.query(f"{waiting} AND wait_event_type = 'Lock'") == [(0,)]
