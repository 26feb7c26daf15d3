"""A stretch that is read again returns its rows in the same order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.postgres.names import TableName
from tailrace.snapshot.copy import lines, query
from tailrace.snapshot.export import export, imported, in_page_order
from tailrace.snapshot.table import Stretch

if TYPE_CHECKING:
    from tests.fix_postgres import Database

LEAF = TableName("public", "items")
STRETCHES = [Stretch(LEAF), Stretch(LEAF, 0, 500), Stretch(LEAF, 500, None)]


@pytest.fixture
def items(database: Database) -> Database:
    """A table that PostgreSQL would otherwise read by its index, or with several workers."""
    database.execute(
        "CREATE TABLE items (id int PRIMARY KEY, wide text) WITH (parallel_workers = 2);"
        "INSERT INTO items SELECT g, repeat('x', 400) FROM generate_series(20000, 1, -1) g"
    )
    database.execute("VACUUM ANALYZE items")
    return database


@pytest.mark.parametrize("stretch", STRETCHES)
@pytest.mark.parametrize("columns", [["id"], ["id", "wide"]])
@pytest.mark.parametrize("conditions", [(), ("(id % 100 = 0)",), ("(id < 50)",)])
def test_rows_are_in_page_order(
    items: Database, stretch: Stretch, columns: list[str], conditions: tuple[str, ...]
) -> None:
    with items.connect() as keeper:
        snapshot = export(keeper, LEAF)
        with imported(items.dsn, snapshot) as connection:
            in_page_order(connection)
            select = query(stretch, columns, conditions)
            text = b"".join(bytes(block) for _, block in lines(connection, select))
            plan = connection.execute(f"EXPLAIN {select}".encode()).fetchall()
    found = [int(line.split(b"\t")[0]) for line in text.splitlines()]
    # They were put in the other way round.
    assert found == sorted(found, reverse=True)
    assert found or stretch.first or conditions
    assert plan[0][0].startswith(("Seq Scan", "Tid Range Scan"))
