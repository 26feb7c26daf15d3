"""Fixtures for a real RabbitMQ: one server per session. Tests have their own names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.testing import EmbeddedRabbitMQ

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def rabbitmq_available() -> None:
    """Skips tests of RabbitMQ on a machine without it."""
    reason = EmbeddedRabbitMQ.unavailable()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def rabbitmq_server(rabbitmq_available: None) -> Iterator[EmbeddedRabbitMQ]:
    """A server, shared."""
    with EmbeddedRabbitMQ() as server:
        yield server
