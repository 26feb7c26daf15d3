"""Fixtures for real Kafka: a broker a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.testing import EmbeddedKafka

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def kafka_available() -> None:
    """Skips what needs a broker where there can be none."""
    reason = EmbeddedKafka.unavailable()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def kafka_server(kafka_available: None) -> Iterator[EmbeddedKafka]:
    """A broker, shared: every test has topics and pipelines of its own."""
    # So that tests need not wait long for members that are gone.
    with EmbeddedKafka(config="group.min.session.timeout.ms=1000") as server:
        yield server
