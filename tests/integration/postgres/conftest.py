"""Fixtures for the sink `postgres`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.testing import EmbeddedPostgres
from tests.integration.postgres.bench import Bench

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fix_postgres import Database


@pytest.fixture
def bench(copy: Database) -> Iterator[Bench]:
    """A target database on the shared server."""
    made = Bench(copy)
    yield made
    for sink in made.made:
        sink.close()


@pytest.fixture(scope="module")
def brittle() -> Iterator[EmbeddedPostgres]:
    """A server that tests may kill, as long as they start it again."""
    with EmbeddedPostgres() as server:
        yield server
