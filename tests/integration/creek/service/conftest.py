"""A captured database with `_creek`, and its schema service."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.creek import answers
from tailrace.creek.sql import install
from tailrace.postgres.connection import connect
from tests.integration.creek.service.service import Service
from tests.waiting import LONG_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tailrace.testing import EmbeddedNats
    from tests.fix_capture import Captured
    from tests.fix_postgres import Database


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine is given time to search; what is unknown is not replied to in any case."""
    monkeypatch.setattr(answers, "_SEARCH_S", 20.0)
    monkeypatch.setattr(answers, "_LAST_SEARCH_S", 20.0)


@pytest.fixture
def patient_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """However late capture is, the log shows which commit added a table."""
    monkeypatch.setattr("tailrace.creek.members._MAX_LOG_LAG_S", LONG_S)


@pytest.fixture
def shop(database: Database) -> Database:
    """A published table, and what Creek needs."""
    database.execute(
        "CREATE TABLE users (id int PRIMARY KEY, name text);"
        "CREATE PUBLICATION tailrace FOR TABLE users WITH (publish_via_partition_root = true)"
    )
    with connect(database.dsn) as connection:
        install(connection)
    return database


@pytest.fixture
def captured(shop: Database, capture: Callable[..., Captured]) -> Captured:
    return capture(shop)


@pytest.fixture
def serve(server: EmbeddedNats) -> Iterator[Callable[..., Service]]:
    """Starts a service over a captured database."""
    made: list[Service] = []

    def start(captured: Captured, **source: str) -> Service:
        made.append(Service(captured, server, **source))
        made[-1].start()
        return made[-1]

    yield start
    for each in made:
        each.stop()
