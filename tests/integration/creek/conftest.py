"""A producer on a NATS server of its own: its streams have fixed names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.testing import EmbeddedNats
from tests.integration.creek.system import Producer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.fix_postgres import Database


@pytest.fixture
def producer(tmp_path: Path, database: Database) -> Iterator[Callable[..., Producer]]:
    """Starts a producer for tables."""
    made: list[Producer] = []
    with EmbeddedNats() as server:

        def start(*tables: str) -> Producer:
            made.append(Producer(tmp_path, database, server.url, *tables))
            made[-1].start()
            return made[-1]

        yield start
        for each in made:
            each.stop()
