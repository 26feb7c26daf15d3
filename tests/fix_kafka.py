"""Fixtures for real Kafka: one broker per session, which outlives every client of it."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

from tailrace.testing import EmbeddedKafka
from tests.fix_spark import stop_spark

if TYPE_CHECKING:
    from collections.abc import Iterator


_SETTINGS = """\
# Tests need not wait long for members that are gone.
group.min.session.timeout.ms=1000
# Nobody kills this broker. On a starved machine heartbeats are late by many seconds, and a broker
# whose session has expired leads no partition.
broker.session.timeout.ms=300000
"""


@pytest.fixture(scope="session")
def kafka_available() -> None:
    """Skips tests of Kafka on a machine that cannot run it."""
    reason = EmbeddedKafka.unavailable()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def kafka_server(kafka_available: None) -> Iterator[EmbeddedKafka]:
    """A broker, shared: every test has topics and pipelines of its own."""
    with EmbeddedKafka(config=_SETTINGS) as server:
        yield server
        end_clients()


def end_clients() -> None:
    """End clients before their server: those of librdkafka report a lost broker for ever.

    They have no `close` but end with their last reference. Spark's Python workers hold some too.
    A producer that met a fatal error stays: reports that never came hold it, through the error.
    """
    stop_spark()
    gc.collect()
