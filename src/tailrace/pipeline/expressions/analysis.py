"""Spark's own opinion of expressions: their types, or what is wrong with them.

Only Spark's analyser is asked, over an empty frame that has the table's columns; no job runs.
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
from tailrace.pipeline.expressions.compile import typed
from tailrace.pipeline.expressions.names import Typed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from tailrace.pipeline.expressions.compile import Compiled
    from tailrace.pipeline.expressions.expression import Expression, Expressions
    from tailrace.schema import Relation

CELLS = (
    "lsn BIGINT, ordinal BIGINT, xid BIGINT, committed_at TIMESTAMP, op STRING, `schema` STRING, "
    "`table` STRING, relation BIGINT, annotations STRING, before ARRAY<STRING>, "
    "after ARRAY<STRING>, unchanged ARRAY<INT>, absent ARRAY<INT>, prefix STRING, content BINARY"
)
"""The frame that compiled expressions run on, as a Spark schema."""

SETTINGS = {
    # A cast or a sum that fails says so. Without, it is NULL, and a filter drops the row.
    "spark.sql.ansi.enabled": "true",
    # Hours and days of a timestamp are those of UTC, as everywhere in the log.
    "spark.sql.session.timeZone": "UTC",
    # A value that two conditions share is not computed before the condition that guards it.
    "spark.sql.subexpressionElimination.skipForShortcutExpr": "true",
}
"""Settings of a session on which the meaning of expressions rests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Types:
    """The types of a pipeline's expressions, in Spark's spelling; None where there is none."""

    where: str | None
    select: tuple[str, ...] | None
    route: str | None
    key: str | None


def result_types(spark: SparkSession, expressions: Expressions, relation: Relation) -> Types:
    """What Spark makes of each expression; `ExpressionError` in its words where it refuses."""

    def asked(expression: Expression | None) -> str | None:
        return None if expression is None else _type(spark, expression, relation)

    where = asked(expressions.where)
    if where not in (None, "boolean", "void") and expressions.where is not None:
        expressions.where.text.refuse(0, f"a condition is true or false; this is of type {where}")
    select = expressions.select
    return Types(
        where=where,
        select=None
        if select is None
        else tuple(_type(spark, item.expression, relation) for item in select),
        route=asked(expressions.route),
        key=asked(expressions.key),
    )


def analyse(spark: SparkSession, expressions: Expressions, compiled: Compiled) -> Compiled:
    """The same with the types of computed columns known, and everything checked by Spark."""
    require_settings(spark)
    if compiled.relation is None:
        return compiled
    kinds = result_types(spark, expressions, compiled.relation)
    if compiled.select is None or kinds.select is None:
        return compiled
    columns = tuple(
        selected if selected.column.type_oid else typed(selected, kind)
        for selected, kind in zip(compiled.select, kinds.select, strict=True)
    )
    return replace(compiled, select=columns)


def require_settings(spark: SparkSession) -> None:
    """Refuse a session in which expressions would mean something else."""
    for name, wanted in SETTINGS.items():
        if spark.conf.get(name) != wanted:
            raise ConfigError(
                f"spark.conf: pipelines with SQL need {name}={wanted}",
                hint="Remove the setting from spark.conf.",
            )


def stopped(message: str) -> PoisonedError | None:
    """The error a compiled expression stopped its query with, found in what Spark says of it."""
    found = re.search(r"\[USER_RAISED_EXCEPTION\] (.*?\(event [0-9a-f]{16}-\d+\))", message)
    return PoisonedError(found[1], hint=_STOPPED) if found else None


_STOPPED = "Guard the expression as the message says, then start again: nothing is lost."


def _type(spark: SparkSession, expression: Expression, relation: Relation) -> str:
    names = Typed(expression.text, relation)
    text = expression.render(names)
    columns = {"op": "STRING"} | names.columns
    schema = ", ".join(f"{sql.name(name)} {kind}" for name, kind in columns.items())
    try:
        with _quiet():
            frame = spark.createDataFrame([], schema).selectExpr(f"{text} AS result")
            return str(frame.schema.fields[0].dataType.simpleString())
    except PySparkException as error:
        raise ExpressionError(
            f"{expression.text.place}: Spark refuses it for {relation.qualified_name}: "
            f"{_sentence(error)}"
        ) from error


def _sentence(error: PySparkException) -> str:
    """The finding alone, without the plan and the code that come after it."""
    return str(error).split(" SQLSTATE:")[0].split("\n")[0][:500]


@contextmanager
def _quiet() -> Iterator[None]:
    """PySpark logs what it raises, with a page of Java."""
    # Of PySpark's own class: it calls the logger with words of its own.
    logger = PySparkLogger.getLogger("SQLQueryContextLogger")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
