"""Topic names: valid for any name in the database, and distinct for distinct names."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.change import Op
from tailrace.errors import ConfigError
from tailrace.sinks.kafka.destination import LONGEST, TopicTemplate, token
from tailrace.sinks.kafka.names import parse_destination

NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=63)
TRICKY = st.text(st.sampled_from("ax2D.-_E "), max_size=8)


def untoken(text: str) -> str:
    """Decode a token, to show that it stands for one name only."""
    if text == "-x":
        return ""
    parts = re.split(r"(-x[0-9A-F]{2})", text)
    return b"".join(
        bytes([int(part[2:], 16)]) if re.fullmatch(r"-x[0-9A-F]{2}", part) else part.encode()
        for part in parts
    ).decode()


@given(NAMES | TRICKY)
def test_a_token_is_valid_and_can_be_decoded(name: str) -> None:
    encoded = token(name)
    assert re.fullmatch(r"[A-Za-z0-9_-]+", encoded)
    assert untoken(encoded) == name


@given(st.lists(st.tuples(NAMES | TRICKY, NAMES | TRICKY), min_size=2, max_size=2, unique=True))
def test_no_two_tables_share_a_topic(tables: list[tuple[str, str]]) -> None:
    for template in ("{database}.{schema}.{table}", "cdc.{table}", "{schema}.{table}.{operation}"):
        topic = TopicTemplate(template, database="shop")
        one, other = (topic.fill(schema, table, Op.INSERT) for schema, table in tables)
        assert parse_destination(one.encode())
        assert parse_destination(other.encode())
        assert one != other


@given(NAMES)
def test_long_names_are_cut_and_stay_distinct(name: str) -> None:
    topic = TopicTemplate("{database}.{schema}.{table}", database="ž" * 31)
    filled = topic.fill("š" * 31, name, Op.INSERT)
    assert len(filled) == LONGEST
    assert filled != topic.fill("š" * 31, f"{name}2", Op.INSERT)


def test_a_template_is_filled_with_escaped_names() -> None:
    topic = TopicTemplate("{database}.{table}.{operation}", database="my-shop")
    assert topic.fill("public", "orders", Op.INSERT) == "my-shop.orders.insert"
    assert topic.fill("sales", "orders", Op.DELETE) == "my-shop.sales.orders.delete"
    with pytest.raises(ConfigError, match="nowhere"):
        TopicTemplate("{nowhere}", database="shop")


@pytest.mark.parametrize("name", [b"", b".", b"..", b"a b", b"a\n", "ž".encode(), b"x" * 250])
def test_invalid_names_are_refused(name: bytes) -> None:
    assert parse_destination(name) is None
