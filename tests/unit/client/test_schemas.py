"""Rows typed by schema documents."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from tailrace.client.schemas import RowTyper, Schema
from tailrace.errors import MalformedError


def schema(**types: str) -> Schema:
    columns = [
        {
            "name": name,
            "position": number,
            "data_type": kind,
            "is_nullable": True,
            "column_default": None,
        }
        for number, (name, kind) in enumerate(types.items(), 1)
    ]
    return Schema.of("users", {"timestamp": 1, "columns": columns})


def test_values_outside_the_python_type_stay_text() -> None:
    typer = RowTyper(schema(at="timestamp with time zone", day="date", n="numeric", t="text"))
    assert typer.apply({"at": "infinity", "day": "0044-03-15 BC", "n": "NaN", "t": "1.0"}) == {
        "at": "infinity",
        "day": "0044-03-15 BC",
        "n": pytest.approx(Decimal("NaN"), nan_ok=True),
        "t": "1.0",
    }
    row = typer.apply({"at": "2026-01-01T00:00:00.5Z", "day": "2024-02-29", "n": "1.50"})
    assert row == {
        "at": datetime(2026, 1, 1, 0, 0, 0, 500_000, UTC),
        "day": date(2024, 2, 29),
        "n": Decimal("1.50"),
    }
    assert str(row["n"]) == "1.50"


def test_columns_that_are_not_in_the_document_are_unknown() -> None:
    typer = RowTyper(schema(id="integer"))
    assert typer.unknown({"id": 1}) == set()
    assert typer.unknown({"id": 1, "more": 2}) == {"more"}
    assert RowTyper(None).apply({"n": "1"}) == {"n": "1"}


@pytest.mark.parametrize("document", [{}, {"timestamp": 1, "columns": [{"name": "id"}]}])
def test_invalid_documents_are_malformed(document: dict[str, object]) -> None:
    with pytest.raises(MalformedError, match="users"):
        Schema.of("users", document)
