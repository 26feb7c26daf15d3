"""Values as they are written for mirrors: PostgreSQL reads them back, and writes them alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tailrace.client.creek.values import date_text, float_text, read, stamp_text, time_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    import psycopg

    from tests.fix_postgres import Database

DAY_US = 86_400_000_000
FIRST_DAY, LAST_DAY = -2440588, 2145042905
STAMPS = st.integers(FIRST_DAY * DAY_US, 9_223_371_331_200_000_000 - 1)
"""PostgreSQL's own arithmetic of them ends before the year 294247."""
STAMP = {"type": "long", "logicalType": "timestamp-micros"}
LETTERS = st.sampled_from('ab{}",\\ \t\nNULnul\u00e9\u3000😀') | st.characters(
    exclude_characters="\0", codec="utf-8"
)
MANY = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def session(database: Database) -> Any:
    with database.connect() as connection:
        connection.execute("SET TimeZone TO 'UTC'")
        yield connection


def alike(session: psycopg.Connection, kind: str, texts: Sequence[str]) -> None:
    """PostgreSQL has the same texts for what it reads out of them."""
    sql = f"SELECT array_agg(t::{kind}::text) FROM unnest(%s::text[]) WITH ORDINALITY u(t, n)"
    [(found,)] = session.execute(sql.encode(), [list(texts)]).fetchall()
    assert found == list(texts)


def same(
    session: psycopg.Connection, sql: str, values: Sequence[Any], texts: Sequence[str]
) -> None:
    """What PostgreSQL reads is what was meant."""
    [(found,)] = session.execute(sql.encode(), [list(texts)]).fetchall()
    assert [int(each) for each in found] == list(values)


@MANY
@given(values=st.lists(STAMPS, min_size=1, max_size=50))
def test_timestamps(session: psycopg.Connection, values: list[int]) -> None:
    plain = [stamp_text(value) for value in values]
    zoned = [stamp_text(value, "+00") for value in values]
    alike(session, "timestamp", plain)
    alike(session, "timestamptz", zoned)
    sql = "SELECT array_agg(extract(epoch FROM t::timestamp) * 1000000) FROM unnest(%s::text[]) t"
    same(session, sql, values, plain)
    for kind in ("timestamp", "timestamptz"):
        message = read(["null", STAMP], kind, "written")
        assert message is not None
        same(session, sql.replace("timestamp)", f"{kind})"), values, [*map(message, values)])


@MANY
@given(values=st.lists(st.integers(FIRST_DAY, LAST_DAY), min_size=1, max_size=50))
def test_dates(session: psycopg.Connection, values: list[int]) -> None:
    texts = [date_text(value) for value in values]
    alike(session, "date", texts)
    sql = "SELECT array_agg(t::date - date '1970-01-01') FROM unnest(%s::text[]) t"
    same(session, sql, values, texts)


@MANY
@given(values=st.lists(st.integers(0, DAY_US), min_size=1, max_size=50))
def test_times(session: psycopg.Connection, values: list[int]) -> None:
    texts = [time_text(value) for value in values]
    alike(session, "time", texts)


@MANY
@given(values=st.lists(st.floats(), min_size=1, max_size=50))
def test_floats(session: psycopg.Connection, values: list[float]) -> None:
    """By value: of two shortest texts PostgreSQL sometimes takes the other, or a longer one."""
    texts = [float_text(value, 15) for value in values]
    sql = b"SELECT array_agg(t::float8::text) FROM unnest(%s::text[]) t"
    [(found,)] = session.execute(sql, [texts]).fetchall()
    for text, said, value in zip(texts, found, values, strict=True):
        assert np.array_equal(float(said), value, equal_nan=True)
        assert said == text or len(said) >= len(text) > 15


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
    written = read({"type": "array", "items": items}, f"_{kind}", "written")
    assert written is not None
    alike(session, f"{kind}[]", [written(elements)])
    if kind == "text":
        found = session.execute(b"SELECT %s::text[]", [written(elements)]).fetchall()
        assert found == [(elements,)]
