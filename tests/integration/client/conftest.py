"""Fixtures of client tests: one NATS server per test, and a system around it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.client.system import System

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tailrace.testing import EmbeddedNats
    from tests.fix_capture import Captured
    from tests.fix_postgres import Database


@pytest.fixture
def system(
    spark: SparkSession,
    database: Database,
    capture: Callable[..., Captured],
    server: EmbeddedNats,
    tmp_path: Path,
) -> Iterator[System]:
    with System(spark, capture(database), server, tmp_path) as made:
        yield made
