"""Values of messages as targets take them."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from tailrace.client.creek.values import Json
from tailrace.mirror.layout import Kind
from tailrace.mirror.targets.values import arrow, plain, text, transpose


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        (Kind.BOOL, [True, None], [True, None]),
        (Kind.INTEGER, [1, None], [1, None]),
        (Kind.FLOAT, [1.5, "-Infinity", None], [1.5, float("-inf"), None]),
        (Kind.BYTES, [b"\0", base64.b64encode(b"\xff").decode(), None], [b"\0", b"\xff", None]),
        (Kind.JSON, [{"a": [1]}, Json('{"a":  1}'), "text", None],
         ['{"a":[1]}', '{"a":  1}', '"text"', None]),
        (Kind.TEXT, ["a", None], ["a", None]),
        (Kind.TEXT, ["a", 1, True, [1, 2]], ["a", "1", "true", "[1,2]"]),
    ],
)  # fmt: skip
def test_plain_values(kind: Kind, values: list[Any], expected: list[Any]) -> None:
    assert plain(kind, values) == expected
    assert arrow(kind, plain(kind, values)).to_pylist() == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None), ("a", "a"), (True, "true"), (False, "false"), (1.5, "1.5"),
        (float("nan"), "NaN"), (float("inf"), "Infinity"), (float("-inf"), "-Infinity"),
        (b"\x00\xff", "\\x00ff"), ({"a": 1}, '{"a":1}'), (12, "12"),
    ],
)  # fmt: skip
def test_text_as_postgresql_reads_it(value: Any, expected: str | None) -> None:
    assert text(value) == expected


def test_transpose_returns_the_named_columns() -> None:
    rows = [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
    assert transpose(rows, ["b", "a"]) == [[2, 4], [1, 3]]
