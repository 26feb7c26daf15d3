"""Table names in their three notations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.client.names import Table
from tailrace.errors import ConfigError

NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)


@given(schema=st.just("public") | NAMES, name=NAMES)
def test_parse_reads_what_str_and_key_write(schema: str, name: str) -> None:
    table = Table(schema, name)
    assert Table.of_key(table.key) == table
    assert Table.parse(str(table)) == table


@pytest.mark.parametrize("text", ["", ".", "a.b.c", 'a"b', '"a', "a.", '""'])
def test_invalid_names_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not the name of a table"):
        Table.parse(text)
