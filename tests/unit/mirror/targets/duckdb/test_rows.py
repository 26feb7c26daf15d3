"""Columns and rows as DuckDB reads them."""

from __future__ import annotations

from typing import Any

from tailrace.mirror.layout import Column, Layout
from tailrace.mirror.targets.duckdb.rows import (
    arrow_table,
    as_plain,
    declaration,
    plain_rows,
    row_match,
)

ID = Column(name="id", position=1, data_type="bigint")
AT = Column(name="at", position=2, data_type="timestamp without time zone")
LAYOUT = Layout(columns=(ID, AT), key=("id",))


def test_types_casts_and_conditions() -> None:
    assert declaration(ID) == '"id" BIGINT'
    assert declaration(Column(name="x", position=3, data_type="mood")) == '"x" VARCHAR'
    assert as_plain(ID) == 't."id"'
    assert as_plain(AT) == 'CAST(t."at" AS VARCHAR)'
    assert row_match([ID]) == 't."id" = CAST(b."id" AS BIGINT)'


def test_rows_have_plain_values_in_the_order_of_the_layout() -> None:
    rows: list[dict[str, Any]] = [{"at": "2026-01-01 00:00:00", "id": 1}, {"at": None, "id": 2}]
    assert [[*row] for row in plain_rows(LAYOUT, rows)] == [["id", "at"], ["id", "at"]]
    assert plain_rows(LAYOUT, []) == []


def test_era_follows_the_date() -> None:
    table = arrow_table([AT], [["0044-03-15 12:00:00 BC", "2026-01-01 00:00:00", None]])
    assert table.to_pydict() == {
        "at": ["0044-03-15 (BC) 12:00:00", "2026-01-01 00:00:00", None],
    }
