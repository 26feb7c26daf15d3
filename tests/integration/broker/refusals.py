"""Errors of client libraries."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.integration.broker.clients import Client


@contextmanager
def refused(client: Client, name: str | Mapping[str, str]) -> Iterator[None]:
    """The block fails with this error: Kafka's name for all clients, or one name per client."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - `refusal` knows which
        yield
    expected = name if isinstance(name, str) else name[type(client).__name__]
    assert client.refusal(caught.value) == expected, caught.value
