from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from tailrace.client.schemas import Schema, Typing
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


def test_what_a_type_cannot_hold_stays_text() -> None:
    typing = Typing(schema(at="timestamp with time zone", day="date", n="numeric", t="text"))
    assert typing.apply({"at": "infinity", "day": "0044-03-15 BC", "n": "NaN", "t": "1.0"}) == {
        "at": "infinity",
        "day": "0044-03-15 BC",
        "n": pytest.approx(Decimal("NaN"), nan_ok=True),
        "t": "1.0",
    }
    found = typing.apply({"at": "2026-01-01T00:00:00.5Z", "day": "2024-02-29", "n": "1.50"})
    assert found == {
        "at": datetime(2026, 1, 1, 0, 0, 0, 500_000, UTC),
        "day": date(2024, 2, 29),
        "n": Decimal("1.50"),
    }
    assert str(found["n"]) == "1.50"


def test_columns_that_the_document_does_not_tell_of() -> None:
    typing = Typing(schema(id="integer"))
    assert typing.unknown({"id": 1}) == set()
    assert typing.unknown({"id": 1, "more": 2}) == {"more"}
    assert Typing(None).apply({"n": "1"}) == {"n": "1"}


@pytest.mark.parametrize("document", [{}, {"timestamp": 1, "columns": [{"name": "id"}]}])
def test_a_document_that_is_none(document: dict[str, object]) -> None:
    with pytest.raises(MalformedError, match="users"):
        Schema.of("users", document)
