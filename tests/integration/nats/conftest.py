"""Fixtures for the NATS sink: one server per module, one stream per test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.testing import EmbeddedNats
from tests.integration.nats.streams import sink_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.sinks.nats.settings import NatsSink


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedNats]:
    with EmbeddedNats() as running:
        yield running


@pytest.fixture
def settings(server: EmbeddedNats) -> NatsSink:
    return sink_settings(server.url)
