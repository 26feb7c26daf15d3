"""Filter pushdown: which of Spark's filters PostgreSQL may apply."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from tailrace.pipeline.source.filters import conditions
from tailrace.schema import Column, Relation, ReplicaIdentity
from tailrace.snapshot.table import Table

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

TYPES = {
    "id": 20, "small": 21, "name": 25, "code": 1043, "padded": 1042, "ok": 16, "day": 1082,
    "at": 1184, "price": 1700, "ratio": 701, "doc": 3802, 'odd "name"': 23,
}  # fmt: skip
TABLE = Table(
    relation=Relation(
        oid=1,
        namespace="public",
        name="t",
        replica_identity=ReplicaIdentity.DEFAULT,
        columns=tuple(Column(name=name, type_oid=oid) for name, oid in TYPES.items()),
    ),
    types={},
)


def sql(*filters: Filter) -> list[str]:
    return conditions(filters, TABLE)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (EqualTo(("id",), 7), "\"id\" = '7'::int8"),
        (EqualTo(("small",), 7), "\"small\" = '7'::int8"),
        (EqualTo(("name",), "it's"), "\"name\" = 'it''s'::text"),
        (EqualTo(("code",), "x"), "\"code\" = 'x'::text"),
        (EqualTo(("ok",), True), "\"ok\" = 'True'::bool"),
        (In(("id",), (1, 2)), "\"id\" IN ('1'::int8, '2'::int8)"),
        (GreaterThan(("id",), 7), "\"id\" > '7'::int8"),
        (GreaterThanOrEqual(("price",), Decimal("1.50")), "\"price\" >= '1.50'::numeric"),
        (LessThan(("day",), date(2026, 1, 31)), "\"day\" < '2026-01-31'::date"),
        (
            LessThanOrEqual(("at",), datetime(2026, 1, 31, 12, tzinfo=UTC)),
            "\"at\" <= '2026-01-31T12:00:00+00:00'::timestamptz",
        ),
        (IsNotNull(("doc",)), '"doc" IS NOT NULL'),
        (IsNotNull(("name",)), '"name" IS NOT NULL'),
        (EqualTo(('odd "name"',), 1), '"odd ""name""" = \'1\'::int8'),
    ],
)
def test_filters_that_mean_the_same_are_pushed_down(condition: Filter, expected: str) -> None:
    assert sql(condition) == [expected]


@pytest.mark.parametrize(
    "condition",
    [
        GreaterThan(("name",), "m"),
        LessThan(("code",), "m"),
        EqualTo(("padded",), "x"),
        EqualTo(("ratio",), 1.5),
        EqualTo(("doc",), "{}"),
        EqualTo(("id",), "7"),
        EqualTo(("id",), None),
        In(("id",), (1, None)),
        EqualTo(("missing",), 1),
        EqualTo(("doc", "field"), 1),
        IsNull(("id",)),
        EqualNullSafe(("id",), 1),
        StringStartsWith(("name",), "a"),
        Not(EqualTo(("id",), 7)),
    ],
)
def test_filters_that_may_differ_are_left_to_spark(condition: Filter) -> None:
    assert sql(condition) == []


def test_filters_are_independent() -> None:
    assert sql(EqualTo(("id",), 7), StringStartsWith(("name",), "a"), IsNotNull(("id",))) == [
        "\"id\" = '7'::int8",
        '"id" IS NOT NULL',
    ]
