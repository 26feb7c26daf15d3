"""Fixtures for Pub/Sub: one server per session. Every test has topics of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.pubsub import PubSubServer, Topics, unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def pubsub_available() -> None:
    """Skips tests of Pub/Sub on a machine without Go."""
    reason = unavailable()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def shared_pubsub(pubsub_available: None) -> Iterator[PubSubServer]:
    """A server, shared."""
    with PubSubServer() as server:
        yield server


@pytest.fixture
def pubsub(shared_pubsub: PubSubServer) -> Iterator[PubSubServer]:
    """The shared server, without faults."""
    yield shared_pubsub
    shared_pubsub.fail()


@pytest.fixture(scope="session")
def topics(shared_pubsub: PubSubServer) -> Iterator[Topics]:
    """Clients for the shared server."""
    made = Topics(shared_pubsub)
    yield made
    made.close()
