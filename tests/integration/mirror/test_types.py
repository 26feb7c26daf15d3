"""A table with a column of every type, mirrored by snapshot and by stream."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

import pytest

from tests.corpus import prepared
from tests.integration.mirror.reading import places
from tests.integration.mirror.system import mirror, target_url

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fix_postgres import Database
    from tests.integration.client.system import System

DOCUMENTS = [
    '{"a": [1, 1.5, null, true, "né"], "": {}}', "[]", '"text"', "12", "-0.25", "false",
    '{"nested": [[{"deep": "\\\\ \\" \\n"}]]}',
]  # fmt: skip
"""Documents that messages hold exactly; docs/reference/types.md names those they do not."""


def create_types(database: Database) -> dict[str, list[str]]:
    """Create types; all types with their values, and JSON documents of this test."""
    return prepared(database) | {"json": DOCUMENTS, "jsonb": DOCUMENTS}


@pytest.mark.parametrize("encoding", ["msgpack", pytest.param("json", marks=pytest.mark.long)])
def test_mirror_has_every_value_of_every_type(
    system: System, copy: Database, tmp_path: Path, encoding: str
) -> None:
    """GIVEN values of all types WHEN the table is mirrored into PostgreSQL THEN it has the same
    values of the same types, column by column, whether they came by snapshot or by stream."""
    system.pipeline["encoding"] = encoding
    types = create_types(system.database)
    create_types(copy)
    columns = [f"c{number}" for number in range(len(types))]
    declared = ", ".join(f"{name} {kind}" for name, kind in zip(columns, types, strict=True))
    system.database.execute(f"CREATE TABLE every (id int PRIMARY KEY, {declared})")
    most = max(map(len, types.values()))

    def insert(first: int) -> None:
        marks = ", ".join(f"%s::{kind}" for kind in types)
        with system.database.connect() as connection, connection.cursor() as cursor:
            cursor.executemany(
                f"INSERT INTO every VALUES (%s::int, {marks})".encode(),
                [
                    [first + row, *(v[row] if row < len(v) else None for v in types.values())]
                    for row in range(most)
                ],
            )

    insert(0)
    system.start()
    with (
        mirror(system, "every", target_url(copy)) as running,
        mirror(system, "every", places(tmp_path, copy)[0].url) as light,
    ):
        running.follows()
        light.follows()
        insert(1000)
        for copied in (running, light):
            copied.wait(lambda copied=copied: copied.status.changes == most, "changes")
    for name, kind in zip(columns, types, strict=True):
        query = f"SELECT id, {name}::text FROM every ORDER BY id"
        if kind == "json":
            # Messages do not have the white space of json: compare as jsonb.
            query = f"SELECT id, {name}::jsonb::text FROM every ORDER BY id"
        assert copy.query(query) == system.database.query(query), (kind, name)
    assert _types(copy) == _types(system.database)
    _compare_sqlite(tmp_path / "copy.sqlite", system, dict(zip(columns, types, strict=True)))


def _types(database: Database) -> list[tuple[str, str]]:
    columns = database.query(
        "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute"
        " WHERE attrelid = 'every'::regclass AND attnum > 0 ORDER BY attname"
    )
    return [(name, kind) for name, kind in columns]


def _compare_sqlite(path: Path, system: System, types: dict[str, str]) -> None:
    """Numbers are numbers; types that SQLite does not have are the text of the messages."""
    connection = sqlite3.connect(path)
    exact = ("bool", "int2", "int4", "int8", "oid", "numeric", "text", "bytea", "uuid", "mood")
    for name, kind in types.items():
        shown = f"{name}::text" if kind in ("numeric", "uuid", "mood") else name
        if kind in exact:
            there = connection.execute(f"SELECT id, {name} FROM every ORDER BY id").fetchall()
            assert there == system.database.query(f"SELECT id, {shown} FROM every ORDER BY id")
    [column] = [name for name, kind in types.items() if kind == "float8"]
    values = connection.execute(f"SELECT {column} FROM every ORDER BY id LIMIT 4").fetchall()
    assert values == [("NaN",), (float("inf"),), (float("-inf"),), (0.0,)]
    connection.close()
