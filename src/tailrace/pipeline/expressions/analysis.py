"""Analysis by Spark: the result types of expressions, or Spark's error.

Only Spark's analyzer and optimizer are called, over an empty frame with the table's columns; no job
runs. `raised_error` and `data_error` read the errors of running expressions.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger

from tailrace.errors import ConfigError, ExpressionError, PoisonedError
from tailrace.pipeline.expressions import sql
from tailrace.pipeline.expressions.compile import typed, typed_payload
from tailrace.pipeline.expressions.names import Typed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from tailrace.pipeline.expressions.compile import Compiled
    from tailrace.pipeline.expressions.expression import Expression, Expressions
    from tailrace.pipeline.expressions.lookups import Lookups
    from tailrace.schema import Relation

CELLS = (
    "lsn BIGINT, ordinal BIGINT, xid BIGINT, committed_at TIMESTAMP, op STRING, `schema` STRING, "
    "`table` STRING, relation BIGINT, annotations STRING, before ARRAY<STRING>, "
    "after ARRAY<STRING>, unchanged ARRAY<INT>, absent ARRAY<INT>, "
    "looked_up ARRAY<STRING>, prefix STRING, content BINARY"
)
"""The cells frame, which compiled expressions run on, as a Spark schema."""

SETTINGS = {
    # Without ANSI mode a failed cast or sum is NULL, and a filter silently drops the row.
    "spark.sql.ansi.enabled": "true",
    # Hours and days of a timestamp are in UTC, as everywhere in the log.
    "spark.sql.session.timeZone": "UTC",
    # Without this, Spark computes a value that two branches share before the test that guards it.
    "spark.sql.subexpressionElimination.skipForShortcutExpr": "true",
}
"""Session settings that the meaning of expressions depends on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Types:
    """The types of a pipeline's expressions, in Spark's spelling; None without an expression."""

    where: str | None
    select: tuple[str, ...] | None
    route: str | None
    key: str | None
    group: str | None
    payload: str | None


def result_types(spark: SparkSession, expressions: Expressions, relation: Relation) -> Types:
    """The type of each expression; `ExpressionError` with Spark's message if Spark refuses it."""

    lookups = expressions.lookups

    def type_of(expression: Expression | None) -> str | None:
        return None if expression is None else _type(spark, expression, relation, lookups)

    where = type_of(expressions.where)
    if where not in (None, "boolean", "void") and expressions.where is not None:
        expressions.where.text.refuse(0, f"must be a condition, got a value of type {where}")
    select = expressions.select
    return Types(
        where=where,
        select=None if select is None else tuple(type_of(item.expression) or "" for item in select),
        route=type_of(expressions.route),
        key=type_of(expressions.key),
        group=type_of(expressions.group),
        payload=type_of(expressions.payload),
    )


def analyse(spark: SparkSession, expressions: Expressions, compiled: Compiled) -> Compiled:
    """Check expressions with Spark and add the types of computed columns."""
    require_settings(spark)
    if compiled.relation is None:
        return compiled
    kinds = result_types(spark, expressions, compiled.relation)
    if expressions.payload is not None and kinds.payload is not None:
        compiled = typed_payload(compiled, expressions.payload, kinds.payload)
    if compiled.select is None or kinds.select is None:
        return compiled
    columns = tuple(
        selected if selected.column.type_oid else typed(selected, kind)
        for selected, kind in zip(compiled.select, kinds.select, strict=True)
    )
    return replace(compiled, select=columns)


def require_settings(spark: SparkSession) -> None:
    """Refuse a session in which expressions would have another meaning."""
    for name, required in SETTINGS.items():
        if spark.conf.get(name) != required:
            raise ConfigError(
                f"spark.conf: pipelines with expressions need {name}={required}",
                hint="Remove the setting from spark.conf.",
            )


def raised_error(message: str) -> PoisonedError | None:
    """The error that a compiled expression raised (`sql.stop`), from Spark's message."""
    match = re.search(r"\[USER_RAISED_EXCEPTION\] (.*?\(event [0-9a-f]{16}-\d+\))", message)
    return PoisonedError(match[1], hint=_GUARD) if match else None


def data_error(message: str) -> ExpressionError | None:
    """The error of an expression that cannot be computed for a row, from Spark's message.

    A failed cast, an overflow, a division by zero, an invalid date: the same row fails again.
    """
    if match := _DATA_EXCEPTION.search(message):
        conditions = list(_CONDITION.finditer(message, 0, match.start()))
        reason = message[conditions[-1].start() : match.start()] if conditions else ""
    elif match := _JAVA_EXCEPTION.search(message):
        reason = match[1]
    else:
        return None
    shown = " ".join(reason.split())[:500]
    return ExpressionError(f"an expression fails for a row: {shown}", hint=_CONVERT)


# Class 22 of SQLSTATE is "data exception". 23505 is a map that has a key twice, 42601 a text that
# does not match the format of to_number(), 54000 a result that is too large.
_DATA_EXCEPTION = re.compile(r" SQLSTATE: (22\w{3}|23505|42601|54000)\b")
_CONDITION = re.compile(r"\[[A-Z][A-Z0-9_.]+\] ")
# Some functions fail with an exception of Java's library, which has no SQLSTATE.
_JAVA_EXCEPTION = re.compile(
    r"\(TID \d+\) \([^()]*\): "
    r"(java\.(?:lang\.(?:Arithmetic|NumberFormat)|time\.[\w.]*|util\.\w*Format\w*)Exception: .*)"
)
_GUARD = "Change the expression as the message says, then restart the pipeline. Nothing is lost."
_CONVERT = (
    "Test the value first, or use try_cast, try_divide or another try_ function, which return NULL "
    "instead; then restart the pipeline. Nothing is lost."
)


def _type(spark: SparkSession, expression: Expression, relation: Relation, lookups: Lookups) -> str:
    names = Typed(expression.text, relation, lookups)
    text = expression.render(names)
    columns = {"op": "STRING"} | names.columns
    schema = ", ".join(f"{sql.name(name)} {kind}" for name, kind in columns.items())
    try:
        with _quiet():
            frame = spark.createDataFrame([], schema).selectExpr(f"{text} AS result")
            # The optimizer computes constants: `id <> 'x'` fails here if id is a number.
            frame._jdf.queryExecution().optimizedPlan()
            return str(frame.schema.fields[0].dataType.simpleString())
    except PySparkException as error:
        raise ExpressionError(
            f"{expression.text.place}: Spark refuses it for {relation.qualified_name}: "
            f"{_sentence(error)}"
        ) from error


def _sentence(error: PySparkException) -> str:
    """The first sentence of Spark's message, without the plan and the error code."""
    return str(error).split(" SQLSTATE:")[0].split("\n")[0][:500]


@contextmanager
def _quiet() -> Iterator[None]:
    """PySpark logs every exception that it raises, with its Java stack: suppress that."""
    # PySpark's own logger class: PySpark passes it keyword arguments that others do not take.
    logger = PySparkLogger.getLogger("SQLQueryContextLogger")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
