"""Producers: `tailrace creek` as a process, and one in this process. Stream names are fixed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.creek.client import producer as by_hand
from tests.integration.creek.system import Producer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tailrace.encode.creek.names import LayoutName
    from tailrace.testing import EmbeddedNats
    from tests.fix_postgres import Database


@pytest.fixture
def producer(
    tmp_path: Path, database: Database, server: EmbeddedNats
) -> Iterator[Callable[..., Producer]]:
    """Starts a producer for tables."""
    made: list[Producer] = []

    def start(*tables: str, layout: LayoutName = "namespace", encoding: str = "avro") -> Producer:
        made.append(
            Producer(tmp_path, database, server.url, *tables, layout=layout, encoding=encoding)
        )
        made[-1].start()
        return made[-1]

    yield start
    for each in made:
        assert each.stop() == 0, each.output


@pytest.fixture
def feeding(server: EmbeddedNats) -> Iterator[by_hand.Producer]:
    """A producer by hand."""
    with by_hand.Producer(server) as running:
        yield running
