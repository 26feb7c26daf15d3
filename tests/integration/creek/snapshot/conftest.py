"""One system per test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.snapshot.service import answers
from tailrace.testing import EmbeddedNats
from tests.integration.creek.snapshot.system import System
from tests.waiting import LONG_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.fix_postgres import Database


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take longer than Creek's clients wait."""
    monkeypatch.setattr(answers, "_CATALOG_TIMEOUT_S", LONG_S)
    monkeypatch.setattr(answers, "_REFUSAL_DELAY_S", 4.0)


@pytest.fixture
def system(spark: SparkSession, database: Database, tmp_path: Path) -> Iterator[System]:
    with EmbeddedNats() as server, System(spark, database, server, tmp_path) as made:
        yield made
