"""The preset's values: durations as Go writes them, lists of tables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import ConfigError
from tailrace.postgres.publication import TableName
from tailrace.run.presets.creek import duration_s, tables_of

NAMES = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), min_size=1)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("0s", 0),
        ("10s", 10),
        ("1h30m", 5400),
        ("1.5h", 5400),
        (".5s", 0.5),
        ("1.s", 1),
        ("100ms", 0.1),
        ("1m1s1ms1us1ns", 61.001001001),
        ("2µs", 2e-6),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert duration_s(text, "X") == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "s", "10", "-1s", "+1s", "1 s", "1w", "ten", "1h 30m", ".s", "\N{DIGIT ONE}"]
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ConfigError, match="NATS_TIMEOUT should be a duration"):
        duration_s(text, "NATS_TIMEOUT")


def test_nothing_is_not_enough() -> None:
    with pytest.raises(ConfigError, match="above 0"):
        duration_s("0s", "X", least=0.001)


def test_lists_of_tables() -> None:
    assert tables_of("") == []
    assert tables_of(" , ") == []
    expected = [TableName("public", "a"), TableName("sales", "b")]
    for text in ("a sales.b", "a,sales.b", " A ,\n SALES.b ,"):
        assert tables_of(text) == expected


@given(st.lists(st.builds(TableName, NAMES, NAMES)), st.sampled_from([" ", ",", ", ", "\n"]))
def test_quoted_names_come_through(tables: list[TableName], between: str) -> None:
    assert tables_of(between.join(table.quoted for table in tables)) == tables


def test_a_name_too_many() -> None:
    with pytest.raises(ConfigError, match="not a table name"):
        tables_of("a.b.c")
