"""Fixtures for the Kafka sink: topics and pipeline names that are unique per test."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from tailrace.testing import EmbeddedKafka
from tests.integration.kafka.reading import Bench

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def bench(kafka_server: EmbeddedKafka) -> Bench:
    return Bench(kafka_server.bootstrap, f"t{uuid.uuid4().hex[:8]}")


@pytest.fixture(scope="module")
def brittle(kafka_available: None) -> Iterator[EmbeddedKafka]:
    """A broker that tests may kill, as long as they start it again."""
    with EmbeddedKafka() as server:
        yield server


@pytest.fixture
def brittle_bench(brittle: EmbeddedKafka) -> Bench:
    return Bench(brittle.bootstrap, f"t{uuid.uuid4().hex[:8]}")
