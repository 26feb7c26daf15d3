"""Messages of the bridge as the demo reads them."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from tailrace.change import Op
from tailrace.cli.demo.arrival import parse


def message(**fields: Any) -> bytes:
    known = {
        "data": {"id": 7},
        "operation": "UPDATE",
        "table": "users",
        "schema": "public",
        "timestamp": "1970-01-01T00:01:40.250000Z",
    }
    return orjson.dumps(known | fields)


def test_an_update() -> None:
    found = parse(message(old={"id": 6}, unchanged=["photo"]), 100.5)
    assert (found.op, found.table) == (Op.UPDATE, "users")
    assert (found.data, found.old, found.unchanged) == ({"id": 7}, {"id": 6}, ("photo",))
    assert found.committed_at == 100.25
    assert found.latency_ms == pytest.approx(250)


def test_missing_fields_are_empty() -> None:
    found = parse(message(), 100.5)
    assert (found.old, found.unchanged) == ({}, ())


def test_a_schema_other_than_public_is_named() -> None:
    assert parse(message(schema="sales"), 0).table == "sales.users"


def test_the_table_of_a_logical_message_is_its_prefix() -> None:
    fields = {"table": None, "schema": None, "operation": "MESSAGE"}
    found = parse(message(data={"prefix": "shop.note", "content": "hello"}, **fields), 0)
    assert (found.op, found.table) == (Op.MESSAGE, "shop.note")
