from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.capture.publication import TableName
from tailrace.client.names import Table
from tailrace.encode.subject import table_path
from tailrace.engine.schemas import key
from tailrace.errors import ConfigError

NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)


@given(schema=st.just("public") | NAMES, name=NAMES)
def test_names_are_those_of_the_sending_side(schema: str, name: str) -> None:
    table = Table(schema, name)
    assert table.path == table_path(schema, name)
    assert table.key == key(TableName(schema, name))
    assert Table.of_key(table.key) == table
    assert Table.parse(str(table)) == table


@pytest.mark.parametrize("text", ["", ".", "a.b.c", 'a"b', '"a', "a.", '""'])
def test_what_is_not_a_name(text: str) -> None:
    with pytest.raises(ConfigError, match="not the name of a table"):
        Table.parse(text)
