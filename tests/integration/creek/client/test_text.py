"""Values in the form of messages: PostgreSQL reads them, and writes the same text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tailrace.client.creek.values import date_text, float_text, stamp_text, time_text, value_reader

if TYPE_CHECKING:
    from collections.abc import Sequence

    import psycopg

    from tests.fix_postgres import Database

DAY_US = 86_400_000_000
FIRST_DAY, LAST_DAY = -2440588, 2145042905
STAMPS = st.integers(FIRST_DAY * DAY_US, 9_223_371_331_200_000_000 - 1)
"""PostgreSQL computes with timestamps before the year 294247."""
STAMP = {"type": "long", "logicalType": "timestamp-micros"}
LETTERS = st.sampled_from('ab{}",\\ \t\nNULnul\u00e9\u3000😀') | st.characters(
    exclude_characters="\0", codec="utf-8"
)
MANY = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@pytest.fixture
def session(database: Database) -> Any:
    with database.connect() as connection:
        connection.execute("SET TimeZone TO 'UTC'")
        yield connection


def check_round_trip(session: psycopg.Connection, kind: str, texts: Sequence[str]) -> None:
    """PostgreSQL writes the same texts for the values that it reads from them."""
    sql = f"SELECT array_agg(t::{kind}::text) FROM unnest(%s::text[]) WITH ORDINALITY u(t, n)"
    [(written,)] = session.execute(sql.encode(), [list(texts)]).fetchall()
    assert written == list(texts)


def check_values(
    session: psycopg.Connection, sql: str, values: Sequence[Any], texts: Sequence[str]
) -> None:
    """PostgreSQL reads these values from the texts."""
    [(numbers,)] = session.execute(sql.encode(), [list(texts)]).fetchall()
    assert [int(number) for number in numbers] == list(values)


@MANY
@given(values=st.lists(STAMPS, min_size=1, max_size=50))
def test_timestamps(session: psycopg.Connection, values: list[int]) -> None:
    plain = [stamp_text(value) for value in values]
    zoned = [stamp_text(value, "+00") for value in values]
    check_round_trip(session, "timestamp", plain)
    check_round_trip(session, "timestamptz", zoned)
    sql = "SELECT array_agg(extract(epoch FROM t::timestamp) * 1000000) FROM unnest(%s::text[]) t"
    check_values(session, sql, values, plain)
    for kind in ("timestamp", "timestamptz"):
        message = value_reader(["null", STAMP], kind, "message")
        assert message is not None
        check_values(
            session, sql.replace("timestamp)", f"{kind})"), values, [*map(message, values)]
        )


@MANY
@given(values=st.lists(st.integers(FIRST_DAY, LAST_DAY), min_size=1, max_size=50))
def test_dates(session: psycopg.Connection, values: list[int]) -> None:
    texts = [date_text(value) for value in values]
    check_round_trip(session, "date", texts)
    sql = "SELECT array_agg(t::date - date '1970-01-01') FROM unnest(%s::text[]) t"
    check_values(session, sql, values, texts)


@MANY
@given(values=st.lists(st.integers(0, DAY_US), min_size=1, max_size=50))
def test_times(session: psycopg.Connection, values: list[int]) -> None:
    texts = [time_text(value) for value in values]
    check_round_trip(session, "time", texts)


@MANY
@given(values=st.lists(st.floats(), min_size=1, max_size=50))
def test_floats(session: psycopg.Connection, values: list[float]) -> None:
    """Compared by value: PostgreSQL may write another shortest text, or a longer one."""
    texts = [float_text(value, 15) for value in values]
    sql = b"SELECT array_agg(t::float8::text) FROM unnest(%s::text[]) t"
    [(written,)] = session.execute(sql, [texts]).fetchall()
    for text, other, value in zip(texts, written, values, strict=True):
        assert np.array_equal(float(other), value, equal_nan=True)
        assert other == text or len(other) >= len(text) > 15


@MANY
@given(
    values=st.one_of(
        st.tuples(st.lists(st.text(LETTERS)), st.just("string"), st.just("text")),
        st.tuples(st.lists(STAMPS | st.just("infinity")), st.just(STAMP), st.just("timestamptz")),
        st.tuples(st.lists(st.booleans()), st.just("boolean"), st.just("bool")),
        st.tuples(st.lists(st.floats(-1e4, 1e4, width=16)), st.just("float"), st.just("float4")),
    )
)
def test_arrays(session: psycopg.Connection, values: tuple[list[Any], Any, str]) -> None:
    elements, items, kind = values
    written = value_reader({"type": "array", "items": items}, f"_{kind}", "message")
    assert written is not None
    check_round_trip(session, f"{kind}[]", [written(elements)])
    if kind == "text":
        read_back = session.execute(b"SELECT %s::text[]", [written(elements)]).fetchall()
        assert read_back == [(elements,)]
