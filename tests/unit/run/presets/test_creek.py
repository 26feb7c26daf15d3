"""The Creek preset: lists of tables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import ConfigError
from tailrace.postgres.names import TableName
from tailrace.run.presets.creek import tables_of

NAMES = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), min_size=1)


def test_lists_of_tables() -> None:
    assert tables_of("") == []
    assert tables_of(" , ") == []
    expected = [TableName("public", "a"), TableName("sales", "b")]
    for text in ("a sales.b", "a,sales.b", " A ,\n SALES.b ,"):
        assert tables_of(text) == expected


@given(st.lists(st.builds(TableName, NAMES, NAMES)), st.sampled_from([" ", ",", ", ", "\n"]))
def test_quoted_names_are_parsed(tables: list[TableName], between: str) -> None:
    assert tables_of(between.join(table.quoted for table in tables)) == tables


def test_a_name_with_too_many_parts() -> None:
    with pytest.raises(ConfigError, match="invalid table name"):
        tables_of("a.b.c")
