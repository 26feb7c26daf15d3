"""Fixtures for Spark: one session, and so one JVM, per run of pytest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import tailrace
from tailrace import config
from tailrace.errors import ConfigError
from tailrace.java import require_java

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

_running: list[SparkSession] = []


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The product's own session, shared."""
    from tailrace.pipeline import session  # noqa: PLC0415 - Spark, only where needed

    try:
        require_java()
    except ConfigError as error:
        pytest.skip(f"Spark needs Java: {error}")

    made = session.build(config.Spark(master="local[4]", conf=session.STREAMING))
    tailrace.register(made)
    _running.append(made)
    yield made
    stop_spark()


def stop_spark() -> None:
    """Stop the session, if one runs: servers that its Python workers are connected to end later."""
    while _running:
        _running.pop().stop()
