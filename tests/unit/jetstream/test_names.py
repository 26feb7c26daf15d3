"""Subjects: names are escaped so that no two tables share one, and every subject is valid."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.change import Op
from tailrace.errors import ConfigError
from tailrace.jetstream.names import table_key, table_path, token
from tailrace.sinks.nats.destination import SubjectTemplate

NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)
ODD = st.text(".*>%$ \t\n\x7f\u00a0é2E", min_size=1, max_size=4)


@given(NAMES | ODD)
def test_a_name_is_one_token(name: str) -> None:
    assert not re.search(r"[\s.*>\x00-\x20\x7f]", token(name))
    assert not token(name).startswith("$")


@given(NAMES | ODD)
def test_a_token_decodes_to_its_name(name: str) -> None:
    unescaped = re.sub(
        rb"%([0-9A-F]{2})", lambda found: bytes([int(found[1], 16)]), token(name).encode()
    )
    assert unescaped.decode() == name


@given(st.tuples(NAMES | ODD, NAMES | ODD), st.tuples(NAMES | ODD, NAMES | ODD))
def test_no_two_tables_share_a_subject(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert (table_path(*one) == table_path(*other)) == (one == other)


def test_letters_of_any_alphabet_are_not_escaped() -> None:
    assert token("Größe_таблица") == "Größe_таблица"


def test_a_template_with_schema_names_it_once() -> None:
    subject = SubjectTemplate("{database}.{schema}.{table}.{operation}", database="my shop")
    assert subject.fill("public", "users", Op.DELETE) == "my%20shop.public.users.delete"
    assert subject.fill("sales", "a.b", Op.UPDATE) == "my%20shop.sales.a%2Eb.update"


def test_a_name_that_looks_like_a_placeholder_is_literal() -> None:
    subject = SubjectTemplate("cdc.{table}.{operation}", database="shop")
    assert subject.fill("public", "{operation}", Op.INSERT) == "cdc.{operation}.insert"


def test_an_unknown_placeholder_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"unknown placeholder \{tabel\}") as caught:
        SubjectTemplate("cdc.{tabel}", database="shop")
    assert "{table}" in caught.value.hint


TABLES = st.tuples(st.just("public") | NAMES | ODD, NAMES | ODD)


@given(TABLES)
def test_keys_are_valid_in_buckets(table: tuple[str, str]) -> None:
    key = table_key(*table)
    assert re.fullmatch(r"[-/_=.a-zA-Z0-9]+", key)
    assert not key.startswith(".")
    assert not key.endswith(".")


@given(TABLES, TABLES)
def test_no_two_tables_share_a_key(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert (table_key(*one) == table_key(*other)) == (one == other)
