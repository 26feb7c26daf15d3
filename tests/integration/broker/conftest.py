"""What serves a scenario: our broker, and a real Kafka as the oracle."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient


@pytest.fixture(params=["broker", "kafka_server"])
def bootstrap(request: pytest.FixtureRequest) -> str:
    """Where clients connect."""
    found: str = request.getfixturevalue(request.param).bootstrap
    return found


@pytest.fixture
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})
