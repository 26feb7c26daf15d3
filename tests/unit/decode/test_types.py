"""Types by oid and by name, their SQL names, and typed columns."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.decode.typed import arrow_type, to_arrow
from tailrace.decode.types import Kind, Type, resolve, type_name
from tailrace.errors import MalformedError
from tailrace.schema import TypeName


def named(name: str, namespace: str = "public", oid: int = 90000) -> dict[int, TypeName]:
    return {oid: TypeName(oid=oid, namespace=namespace, name=name)}


@pytest.mark.parametrize(
    ("oid", "kind"),
    [(16, Kind.BOOL), (20, Kind.INT8), (1042, Kind.TEXT), (3802, Kind.JSONB), (4451, Kind.RANGE)],
)
def test_built_in_types(oid: int, kind: Kind) -> None:
    assert resolve(oid, -1, {}) == Type(kind=kind)


def test_arrays_know_their_element() -> None:
    assert resolve(1231, ((12 << 16) | 2) + 4, {}) == Type(
        kind=Kind.ARRAY, element=Type(kind=Kind.NUMERIC, precision=12, scale=2)
    )
    assert resolve(1020, -1, {}).element == Type(kind=Kind.GEOMETRY, delimiter=";")


def test_unknown_types_are_text() -> None:
    assert resolve(90000, -1, {}).kind is Kind.TEXT
    assert resolve(90000, -1, named("mood")).kind is Kind.TEXT
    assert resolve(90000, -1, named("citext")).kind is Kind.TEXT


@pytest.mark.parametrize("namespace", ["", "pg_catalog"])
def test_domains_are_their_base_type(namespace: str) -> None:
    assert resolve(90000, -1, named("int4", namespace)).kind is Kind.INT4
    assert resolve(90000, -1, named("_text", namespace)).element == Type(kind=Kind.TEXT)


def test_a_type_of_ours_may_be_called_like_a_built_in_one() -> None:
    assert resolve(90000, -1, named("int4")).kind is Kind.TEXT
    assert type_name(90000, -1, named("int4", "odd Schema")) == '"odd Schema".int4'


def test_extensions_go_by_name() -> None:
    assert resolve(90000, -1, named("hstore", "extensions")).kind is Kind.HSTORE
    assert resolve(90000, 3, named("halfvec")).kind is Kind.VECTOR
    assert resolve(90000, -1, named("_hstore")).element == Type(kind=Kind.HSTORE)
    assert resolve(90000, -1, named("_mood")).element == Type(kind=Kind.TEXT)


@pytest.mark.parametrize(
    ("oid", "modifier", "name"),
    [
        (23, -1, "integer"),
        (1007, -1, "integer[]"),
        (1700, ((12 << 16) | 2) + 4, "numeric(12,2)"),
        (1700, ((3 << 16) | (-2 & 0x7FF)) + 4, "numeric(3,-2)"),
        (1184, -1, "timestamp with time zone"),
        (1083, 0, "time(0) without time zone"),
        (1043, 24, "character varying(20)"),
        (1560, 5, "bit(5)"),
        (1186, (0x7FFF << 16) | 3, "interval(3)"),
        (90000, -1, "type 90000"),
    ],
)
def test_names(oid: int, modifier: int, name: str) -> None:
    assert type_name(oid, modifier, {}) == name


def test_names_of_other_types() -> None:
    assert type_name(90000, -1, named("mood")) == "mood"
    assert type_name(90000, -1, named("_mood", "sales")) == "sales.mood[]"
    assert type_name(90000, 3, named("vector")) == "vector(3)"
    assert type_name(90000, -1, named("int4", "")) == "integer"


def typed(kind: Kind, *texts: str | None, **more: int) -> tuple[list[object], list[bool]]:
    column = pa.array([None if text is None else text.encode() for text in texts], pa.binary())
    values, refused = to_arrow(column, Type(kind=kind, **more))  # type: ignore[arg-type]
    values.validate(full=True)
    assert values.type == arrow_type(Type(kind=kind, **more))  # type: ignore[arg-type]
    return values.to_pylist(), refused.tolist()


def test_typed_columns() -> None:
    assert typed(Kind.BOOL, "t", None, "f") == ([True, None, False], [False] * 3)
    assert typed(Kind.INT2, "-1", None) == ([-1, None], [False] * 2)
    assert typed(Kind.OID, "4294967295") == ([4294967295], [False])
    assert typed(Kind.FLOAT8, "-Infinity", "0.1", None)[0] == [float("-inf"), 0.1, None]
    assert typed(Kind.BYTEA, "\\x00ff", "\\x", None)[0] == [b"\x00\xff", b"", None]
    assert typed(Kind.ARRAY, "{1,2}")[0] == ["{1,2}"]
    assert typed(Kind.NUMERIC, "NaN", "1." + "1" * 50)[0] == ["NaN", "1." + "1" * 50]


def test_what_a_date_cannot_hold_is_reported() -> None:
    found = typed(Kind.DATE, "infinity", None, "2024-02-29", "0044-03-15 BC", "10000-01-01")
    assert found == ([None, None, date(2024, 2, 29), None, None], [True, False, False, True, True])


def test_what_a_timestamp_cannot_hold_is_reported() -> None:
    texts = ["-infinity", "2024-02-29 01:02:03.5", "0044-03-15 12:00:00 BC", None]
    found = typed(Kind.TIMESTAMP, *texts)
    assert found == (
        [None, datetime(2024, 2, 29, 1, 2, 3, 500_000), None, None],
        [True, False, True, False],
    )
    zoned = typed(Kind.TIMESTAMPTZ, "2024-02-29 01:02:03+00", "294276-12-31 00:00:00+00")
    assert zoned == ([datetime(2024, 2, 29, 1, 2, 3, tzinfo=UTC), None], [False, True])


def test_what_a_decimal_cannot_hold_is_reported() -> None:
    found = typed(Kind.NUMERIC, "NaN", "-1.10", None, precision=5, scale=2)
    assert found == ([None, Decimal("-1.10"), None], [True, False, False])


@pytest.mark.parametrize("text", ["", "\\", "\\x0", "abcd", "\\x0g", "\\000\\377"])
def test_bytea_in_another_form_is_refused(text: str) -> None:
    for texts in ([text], [text, "\\x00"], ["\\x00", text]):
        with pytest.raises(MalformedError, match="hexadecimal"):
            typed(Kind.BYTEA, *texts)


def test_text_that_is_not_utf8_is_reported() -> None:
    column = pa.array([b"a", b"\xff", None, "é".encode()], pa.binary())
    values, refused = to_arrow(column, Type(kind=Kind.TEXT))
    values.validate(full=True)
    assert values.to_pylist() == ["a", None, None, "é"]
    assert refused.tolist() == [False, True, False, False]


@pytest.mark.parametrize(
    ("precision", "scale", "expected"),
    [
        (12, 2, pa.decimal128(12, 2)),
        (38, 0, pa.decimal128(38, 0)),
        (39, 0, pa.string()),
        (3, -2, pa.decimal128(5, 0)),
        (2, 5, pa.decimal128(5, 5)),
        (1000, -1000, pa.string()),
    ],
)
def test_decimals_of_odd_scales(precision: int, scale: int, expected: pa.DataType) -> None:
    assert arrow_type(Type(kind=Kind.NUMERIC, precision=precision, scale=scale)) == expected


@given(st.lists(st.none() | st.datetimes() | st.just("infinity"), min_size=1))
def test_timestamps_come_back(values: list[datetime | str | None]) -> None:
    texts = [None if value is None else str(value) for value in values]
    found, refused = typed(Kind.TIMESTAMP, *texts)
    assert found == [value if isinstance(value, datetime) else None for value in values]
    assert refused == [value == "infinity" for value in values]
