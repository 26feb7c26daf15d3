"""A table with a column of every type, through `tailrace creek`, and mirrored."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import TYPE_CHECKING, Any

import pytest

from tests.corpus import prepared
from tests.integration.creek.client.calls import rest, run_connected
from tests.integration.creek.mirror.following import Following
from tests.integration.mirror.system import target_url
from tests.waiting import LONG_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tailrace.client.creek import Creek
    from tests.fix_postgres import Database
    from tests.integration.creek.system import Producer

pytestmark = pytest.mark.long

DOMAINS = {"positive": "integer", "labels": "text[]"}
"""The stream has the base types of domains."""


def test_mirror_has_every_value_of_every_type(
    database: Database, producer: Callable[..., Producer], copy: Database, tmp_path: Path
) -> None:
    """GIVEN values of all types WHEN the table is mirrored into PostgreSQL THEN it has the same
    values of the same types, column by column, whether they came by snapshot or by stream."""
    types = prepared(database)
    prepared(copy)
    columns = [f"c{number}" for number in range(len(types))]
    declared = ", ".join(f"{name} {kind}" for name, kind in zip(columns, types, strict=True))
    database.execute(f"CREATE TABLE every (id int PRIMARY KEY, {declared})")
    count = max(map(len, types.values()))
    insert_rows(database, types, count, 0)
    url = producer("public.every").nats
    running = Following(f"{url}?creek=CREEK", "every", target_url(copy))
    light = Following(f"{url}?creek=CREEK", "every", f"sqlite:///{tmp_path}/copy.db")
    try:
        running.follows()
        light.follows()
        insert_rows(database, types, count, 1000)
        for copied in (running, light):
            copied.wait(lambda copied=copied: copied.status.changes == count, "changes")
    finally:
        running.stop()
        light.stop()
    for name, kind in zip(columns, types, strict=True):
        query = f"SELECT id, {name}::text FROM every ORDER BY id"
        assert copy.query(query) == database.query(query), (kind, name)
    assert declarations(copy) == [
        (name, DOMAINS.get(kind, kind)) for name, kind in declarations(database)
    ]
    json = next(name for name, kind in zip(columns, types, strict=True) if kind == "json")
    connection = sqlite3.connect(tmp_path / "copy.db")
    query = f"SELECT id, {json} FROM every ORDER BY id"
    assert connection.execute(query).fetchall() == database.query(
        query.replace(json, f"{json}::text")
    )
    connection.close()
    assert count_typed_rows(url, database) == 2 * count


def insert_rows(database: Database, types: dict[str, list[str]], count: int, first: int) -> None:
    """One row per value of a type; NULL where a type has fewer values."""
    marks = ", ".join(f"%s::{kind}" for kind in types)
    rows = [
        [first + row, *(values[row] if row < len(values) else None for values in types.values())]
        for row in range(count)
    ]
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.executemany(f"INSERT INTO every VALUES (%s::int, {marks})".encode(), rows)


def declarations(database: Database) -> list[tuple[Any, ...]]:
    return database.query(
        "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute"
        " WHERE attrelid = 'every'::regclass AND attnum > 0 ORDER BY attname"
    )


def count_typed_rows(url: str, database: Database) -> int:
    """The number of rows; rows and changes have the same Python values."""
    rows: list[Any] = []

    async def check(client: Creek) -> None:
        rows.extend(await rest(client.snapshot(database.name, "every")))
        stream = client.stream_wal(database.name, "every")
        async with asyncio.timeout(LONG_S), stream:
            changes = [await anext(stream) for _ in range(len(rows) // 2)]
        later = {row["id"]: row for row in rows if row["id"] >= 1000}
        # Compared as text: NaN is not equal to itself.
        assert {repr(later[change.after["id"]]) for change in changes if change.after} == {
            repr(change.after) for change in changes
        }

    run_connected(url, check)
    return len(rows)
