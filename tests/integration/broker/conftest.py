"""What serves a scenario, our broker and a real Kafka as the oracle; and what it is run with."""

from __future__ import annotations

import gc
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient

from tests.integration.broker.clients import CLIENTS, MEMBERS
from tests.integration.broker.clients.java import no_java
from tests.integration.broker.given import make_topic
from tests.integration.broker.members import Members

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.broker.clients import Client


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """kafka-python leaves sockets to the garbage collector now and then, in any later test.

    Java's client starts a JVM per scenario: conformance runs with it always, the rest in
    `make test-long`.
    """
    ours = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(ours):
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))
            if item.path.name != "test_conformance.py" and "java" in _parameters(item):
                item.add_marker(pytest.mark.long)


def _parameters(item: pytest.Item) -> list[object]:
    call = getattr(item, "callspec", None)
    return [] if call is None else list(call.params.values())


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Nothing that a client has left behind is found in another folder's tests."""
    yield
    gc.collect()


@pytest.fixture(params=["broker", pytest.param("kafka_server", marks=pytest.mark.long)])
def bootstrap(request: pytest.FixtureRequest) -> str:
    """Where clients connect."""
    found: str = request.getfixturevalue(request.param).bootstrap
    return found


@pytest.fixture
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


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
    return make_topic(bootstrap)


@pytest.fixture(params=MEMBERS)
def members(request: pytest.FixtureRequest, bootstrap: str, tmp_path: Path) -> Iterator[Members]:
    """A group of consumers with one of the libraries, and a topic of four partitions."""
    if request.param == "java" and (reason := no_java()):
        pytest.skip(reason)
    if request.param == "kcat" and shutil.which("kcat") is None:
        pytest.skip("kcat is not on PATH")
    made = Members(request.param, bootstrap, make_topic(bootstrap, 4), tmp_path)
    yield made
    made.end()
