"""Fixtures: every scenario runs on the broker and, as the oracle, on Kafka, with every client."""

from __future__ import annotations

import gc
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient

from tests.integration.broker.clients import CLIENTS, MEMBERS
from tests.integration.broker.clients.java import no_java
from tests.integration.broker.embedded import EmbeddedBroker
from tests.integration.broker.members import Members
from tests.integration.broker.samples import create_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tailrace.broker.limits import Limits
    from tests.fix_postgres import Database
    from tests.integration.broker.clients import Client


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignore sockets that kafka-python leaves to the garbage collector, in any later test.

    Java's client starts a JVM per scenario: conformance runs with it always, the rest in
    `make test-long`.
    """
    folder = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(folder):
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))
            if item.path.name != "test_conformance.py" and "java" in _parameters(item):
                item.add_marker(pytest.mark.long)


def _parameters(item: pytest.Item) -> list[object]:
    call = getattr(item, "callspec", None)
    return [] if call is None else list(call.params.values())


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Collect what clients left, so that tests of other folders do not see its warnings."""
    yield
    gc.collect()


@pytest.fixture
def inside(database: Database) -> Iterator[Callable[[Limits], EmbeddedBroker]]:
    """Starts a broker in this process."""
    made: list[EmbeddedBroker] = []

    def make(limits: Limits) -> EmbeddedBroker:
        made.append(EmbeddedBroker(database.dsn, limits))
        return made[-1]

    yield make
    for each in made:
        each.close()
        assert each.used == 0


@pytest.fixture(params=["broker", pytest.param("kafka_server", marks=pytest.mark.long)])
def bootstrap(request: pytest.FixtureRequest) -> str:
    """The address of the broker, or of Kafka."""
    found: str = request.getfixturevalue(request.param).bootstrap
    return found


@pytest.fixture
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


@pytest.fixture(params=CLIENTS)
def kind(request: pytest.FixtureRequest) -> type[Client]:
    if request.param == "java" and (reason := no_java()):
        pytest.skip(reason)
    return CLIENTS[request.param]


@pytest.fixture
def client(kind: type[Client], bootstrap: str) -> Client:
    return kind(bootstrap)


@pytest.fixture
def topic(bootstrap: str) -> str:
    return create_topic(bootstrap)


@pytest.fixture(params=MEMBERS)
def members(request: pytest.FixtureRequest, bootstrap: str, tmp_path: Path) -> Iterator[Members]:
    """A consumer group of one client library, and a topic of four partitions."""
    if request.param == "java" and (reason := no_java()):
        pytest.skip(reason)
    if request.param == "kcat" and shutil.which("kcat") is None:
        pytest.skip("kcat is not on PATH")
    made = Members(request.param, bootstrap, create_topic(bootstrap, 4), tmp_path)
    yield made
    made.end()
