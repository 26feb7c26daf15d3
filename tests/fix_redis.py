"""Fixtures for real Redis: one server and one cluster per session. Tests have their own names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.testing import EmbeddedRedis, EmbeddedRedisCluster

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def redis_available() -> None:
    """Skips tests of Redis on a machine without it."""
    reason = EmbeddedRedis.unavailable()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def redis_server(redis_available: None) -> Iterator[EmbeddedRedis]:
    """A server, shared."""
    with EmbeddedRedis() as server:
        yield server


@pytest.fixture(scope="session")
def redis_cluster(redis_available: None) -> Iterator[EmbeddedRedisCluster]:
    """A cluster of three masters, shared."""
    with EmbeddedRedisCluster() as servers:
        yield servers
