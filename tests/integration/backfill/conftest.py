"""The fixture `system`: a pipeline and its backfill service."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.backfill.system import System

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
    nats_server: EmbeddedNats,
    tmp_path: Path,
) -> Iterator[System]:
    with System(spark, capture(database), nats_server, tmp_path) as made:
        yield made
