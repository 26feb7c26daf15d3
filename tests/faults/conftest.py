"""The fault tests' own server: they stop, crash and restart it as they like."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.testing import EmbeddedKafka, EmbeddedNats, EmbeddedPostgres
from tests.faults.harness import Rig
from tests.fix_postgres import Database

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def victim() -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(18, settings={"wal_sender_timeout": "5s"}) as server:
        yield server


@pytest.fixture
def victim_database(victim: EmbeddedPostgres) -> Iterator[Database]:
    name = victim.create_database("fault")
    try:
        yield Database(name=name, server=victim)
    finally:
        victim.drop_database(name)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedNats]:
    """A NATS server of the test's own."""
    with EmbeddedNats(data=tmp_path / "jetstream") as started:
        yield started


@pytest.fixture
def kafka(kafka_available: None) -> Iterator[EmbeddedKafka]:
    """A Kafka of the test's own."""
    with EmbeddedKafka() as started:
        yield started


@pytest.fixture
def rig(victim_database: Database, tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(victim_database, tmp_path)
    yield rig
    rig.end()
