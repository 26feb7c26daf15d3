"""Fixtures for the shadow: a database with a topic, and a Kafka."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from tests.integration.shadow.bench import Bench

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.testing import EmbeddedKafka
    from tests.fix_postgres import Database


@pytest.fixture
def bench(database: Database, kafka_server: EmbeddedKafka) -> Iterator[Bench]:
    created = Bench(database, kafka_server.bootstrap, f"s{uuid.uuid4().hex[:8]}")
    created.install()
    yield created
    created.close()
