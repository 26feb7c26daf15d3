"""Fixtures for mirrors of Creek's tables: a server, a producer by hand, and a database."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.testing import EmbeddedNats
from tests.fix_postgres import Database
from tests.integration.creek.client.producer import Producer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.testing import EmbeddedPostgres


@pytest.fixture
def server() -> Iterator[EmbeddedNats]:
    with EmbeddedNats() as running:
        yield running


@pytest.fixture
def feeding(server: EmbeddedNats) -> Iterator[Producer]:
    """A producer by hand."""
    with Producer(server) as running:
        yield running


@pytest.fixture
def copy(postgres: EmbeddedPostgres) -> Iterator[Database]:
    """An empty database to mirror into."""
    name = postgres.create_database("copy")
    try:
        yield Database(name=name, server=postgres)
    finally:
        postgres.drop_database(name)
