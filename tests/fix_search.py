"""Fixtures for real OpenSearch and Elasticsearch: one node each per session.

Tests have indices of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.testing import EmbeddedElasticsearch, EmbeddedOpenSearch

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def opensearch_server() -> Iterator[EmbeddedOpenSearch]:
    """A node, shared."""
    reason = EmbeddedOpenSearch.unavailable()
    if reason is not None:
        pytest.skip(reason)
    with EmbeddedOpenSearch() as server:
        yield server


@pytest.fixture(scope="session")
def elasticsearch_server() -> Iterator[EmbeddedElasticsearch]:
    """A node, shared."""
    reason = EmbeddedElasticsearch.unavailable()
    if reason is not None:
        pytest.skip(reason)
    with EmbeddedElasticsearch() as server:
        yield server
