"""The memory of TLS connections."""

from __future__ import annotations

from asyncio import sslproto
from typing import TYPE_CHECKING, Any

from tailrace.broker.auth.tls import limit_buffers

if TYPE_CHECKING:
    import pytest


def test_a_tls_connection_has_a_small_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN the limit THEN the buffer into which asyncio reads from a TLS connection has 16 KB."""
    monkeypatch.setattr(sslproto.SSLProtocol, "max_size", sslproto.SSLProtocol.max_size)
    limit_buffers()
    connection: Any = sslproto.SSLProtocol.__new__(sslproto.SSLProtocol)
    connection._ssl_buffer = bytearray()
    assert len(connection.get_buffer(-1)) == 16 << 10
