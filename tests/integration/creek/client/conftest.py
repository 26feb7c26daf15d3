"""Fixtures for Creek's consumers: a NATS server and a producer a test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.testing import EmbeddedNats
from tests.integration.creek.client.producer import Producer

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def server() -> Iterator[EmbeddedNats]:
    with EmbeddedNats() as running:
        yield running


@pytest.fixture
def feeding(server: EmbeddedNats) -> Iterator[Producer]:
    """A producer by hand."""
    with Producer(server) as running:
        yield running
