"""Random expressions: Spark reads the text that is compiled as the user wrote it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyspark.errors import AnalysisException

from tailrace.errors import ExpressionError
from tailrace.pipeline.expressions.compile import compile  # noqa: A004
from tailrace.pipeline.expressions.names import Typed
from tests.chance import examples
from tests.unit.pipeline.expressions.cells import (
    TABLE,
    cells,
    column,
    expressions,
    frame_of,
    written,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    Evaluate = Callable[[list[str], tuple[Any, ...]], list[Any]]


STRINGS = st.lists(
    st.tuples(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
        | st.sampled_from(["${spark.app.name}", "\\", "'", "\\'", "a\\u0041", "%\\_", "\n\t", "--"])
        | st.sampled_from(
            ["/*", "`", '"', ";", "${env:HOME}", "$x", "'; DROP", "\\0", "\x00", "é"]
        ),
        st.sampled_from(["doubled", "backslashed", "escaped"]),
    ),
    min_size=30,
    max_size=30,
)


@pytest.mark.parametrize("escaped", ["false", "true"])
@settings(max_examples=examples(0.04), suppress_health_check=list(HealthCheck))
@given(strings=STRINGS)
def test_spark_evaluates_the_string_that_the_user_wrote(
    spark: SparkSession, escaped: str, strings: list[tuple[str, str]]
) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.parser.escapedStringLiterals", escaped)
    texts = [compile(expressions(where=written(*each)), TABLE, {}).where for each in strings]
    named = [f"{text} AS c{index}" for index, text in enumerate(texts)]
    (row,) = frame_of(session, [cells()]).selectExpr(*named).collect()
    assert list(row) == [value for value, _ in strings]


# Without parentheses, so that both parsers have to agree on what binds to what.
VALUES = st.recursive(
    st.sampled_from(["a", "b", "1", "2.5", "-a", "- 1"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "%", "DIV"]), inner).map(" ".join),
        inner.map(lambda one: f"abs({one})"),
        inner.map(lambda one: f"({one})"),
        inner.map(lambda one: f"coalesce({one}, a::int, cast({one} AS double))"),
        st.tuples(inner, inner).map(lambda two: f"CASE WHEN p THEN {two[0]} ELSE {two[1]} END"),
    ),
    max_leaves=6,
)
TEXTS = st.recursive(
    st.sampled_from(["s", "t", "'x'", "upper(s)"]),
    lambda inner: st.tuples(inner, st.sampled_from(["||", "+"]), inner).map(" ".join),
    max_leaves=3,
)
TRUTHS = st.recursive(
    st.one_of(
        st.tuples(VALUES, st.sampled_from(["=", "<>", "<", ">=", "<=>", "!="]), VALUES).map(
            " ".join
        ),
        st.tuples(TEXTS, st.just("="), TEXTS).map(" ".join),
        st.tuples(TEXTS, st.sampled_from(["LIKE 'x'", "NOT LIKE 'x'", "RLIKE 'x'"])).map(" ".join),
        st.tuples(VALUES, st.sampled_from(["IS NULL", "IS NOT NULL"])).map(" ".join),
        st.tuples(VALUES, VALUES, VALUES).map(lambda v: f"{v[0]} BETWEEN {v[1]} AND {v[2]}"),
        st.tuples(VALUES, VALUES, VALUES).map(lambda v: f"{v[0]} NOT IN ({v[1]}, {v[2]})"),
        st.tuples(VALUES, VALUES).map(lambda v: f"{v[0]} IS DISTINCT FROM {v[1]}"),
        st.just("p"),
    ),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["AND", "OR"]), inner).map(" ".join),
        inner.map(lambda one: f"NOT {one}"),
        inner.map(lambda one: f"({one})"),
        inner.map(lambda one: f"! {one}"),
        inner.map(lambda one: f"{one} IS TRUE"),
        st.tuples(inner, inner).map(" = ".join),
    ),
    max_leaves=5,
)
PARSED = TABLE.__class__(
    oid=1,
    namespace="public",
    name="p",
    replica_identity=TABLE.replica_identity,
    columns=(column("a", 20), column("b", 701), column("s", 25), column("t", 25), column("p", 16)),
)


@settings(max_examples=examples(0.8), suppress_health_check=list(HealthCheck))
@given(text=TRUTHS)
@example(text="(p = NOT -a IS NULL)")
def test_spark_parses_the_rendered_and_the_original_text_alike(
    spark: SparkSession, text: str
) -> None:
    try:
        where = expressions(where=text).where
    except ExpressionError as error:
        # A refusal is fine, a misreading is not.
        assert re.search("parentheses|constants only", str(error))  # noqa: PT017
        return
    assert where is not None
    ours = where.render(Typed(where.text, PARSED, {}))
    frame = spark.createDataFrame([], "a BIGINT, b DOUBLE, s STRING, t STRING, p BOOLEAN")
    theirs = plan(frame, text)
    # Some chains of IS are no sentence to Spark at all, so there is nothing to misread; and in
    # `p = NOT -a IS NULL` it takes NOT for a column, which there is not.
    refused = ("PARSE_SYNTAX_ERROR", "UNRESOLVED_COLUMN.WITH_SUGGESTION")
    assert theirs in (plan(frame, ours), *refused)


def plan(frame: Any, text: str) -> str:
    try:
        made = frame.selectExpr(f"{text} AS x")
    except AnalysisException as error:
        return str(error.getCondition())
    # Not the canonical tree: that one sorts operands, and `isnotnull` is not where `isnull` is.
    tree = re.sub(r"#\d+L?", "", str(made._jdf.queryExecution().analyzed().toString()))
    # sqlglot has one tree for `a IS NOT NULL` and `NOT a IS NULL`, Spark has two.
    return tree.replace("isnotnull(", "NOT isnull(")
