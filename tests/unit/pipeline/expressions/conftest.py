"""A Spark session with the settings that expressions depend on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tailrace.pipeline.expressions.analysis import SETTINGS
from tailrace.pipeline.expressions.compile import compile  # noqa: A004
from tests.unit.pipeline.expressions.cells import TABLE, expressions, frame_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    Evaluate = Callable[..., Any]


@pytest.fixture(scope="module")
def spark(spark: SparkSession) -> SparkSession:
    """A session of the shared one's context."""
    session = spark.newSession()
    for name, value in SETTINGS.items():
        session.conf.set(name, value)
    return session


@pytest.fixture
def evaluate(spark: SparkSession) -> Evaluate:
    """`evaluate(["a = 1", ...], row)` → the values, each compiled as a `where` of TABLE."""

    def run(texts: list[str], row: tuple[Any, ...]) -> list[Any]:
        compiled = [compile(expressions(where=text), TABLE, {}).where for text in texts]
        named = [f"{text} AS c{index}" for index, text in enumerate(compiled)]
        (found,) = frame_of(spark, [row]).selectExpr(*named).collect()
        return list(found)

    return run
