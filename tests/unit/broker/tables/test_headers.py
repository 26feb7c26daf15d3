from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.broker.tables import headers


@given(st.none() | st.binary())
def test_any_value_survives_the_table(value: bytes | None) -> None:
    assert headers.from_json(orjson.loads(orjson.dumps(headers.to_json(value)))) == value


@given(st.lists(st.tuples(st.text(), st.none() | st.binary())))
def test_headers_keep_their_order(pairs: list[tuple[str, bytes | None]]) -> None:
    text = orjson.dumps([[name, headers.to_json(value)] for name, value in pairs]).decode()
    assert headers.parse(text) == pairs


def test_a_record_without_headers() -> None:
    assert headers.parse(None) == []
    assert headers.parse("") == []


@pytest.mark.parametrize(
    ("value", "content"),
    [(1, b"1"), (True, b"true"), ([1], b"[1]"), ({"a": 1}, b'{"a":1}'), ("é", "é".encode())],
)
def test_values_that_sql_wrote(value: object, content: bytes) -> None:
    assert headers.from_json(value) == content
