"""Connections to one receiver, which are kept between requests.

Each thread has its own: a connection of HTTP/2 in httpcore must not be shared by threads.
"""

from __future__ import annotations

import ssl
import threading
from typing import TYPE_CHECKING

import httpcore

from tailrace.errors import SinkRefusedError, SinkUnreachableError
from tailrace.sinks.http.addresses import CheckedAddresses

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from tailrace.sinks.http.settings import HttpSink

_KEEP_ALIVE_S = 4.0
"""Many servers close an idle connection after five seconds."""

Headers = list[tuple[str, str] | tuple[bytes, bytes]]


class Connections:
    """Makes connections as the settings describe. After `close` there are no more requests."""

    def __init__(self, settings: HttpSink) -> None:
        self.closed = threading.Event()
        self._settings = settings
        self._context = _tls(settings)
        self._own = threading.local()
        self._lock = threading.Lock()
        self._all: list[httpcore.ConnectionPool] = []

    def stream(
        self, method: str, url: httpcore.URL, headers: Headers, body: bytes
    ) -> AbstractContextManager[httpcore.Response]:
        """Send a request over the connection of this thread."""
        timeouts = dict.fromkeys(("connect", "read", "write", "pool"), self._settings.timeout_s)
        return self._pool().stream(
            method, url, headers=headers, content=body, extensions={"timeout": timeouts}
        )

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            self.closed.set()
            pools, self._all = self._all, []
        for pool in pools:
            pool.close()

    def _pool(self) -> httpcore.ConnectionPool:
        pool: httpcore.ConnectionPool | None = getattr(self._own, "pool", None)
        with self._lock:
            if self.closed.is_set():
                raise SinkUnreachableError("the sink is closed")
            if pool is None:
                pool = self._own.pool = httpcore.ConnectionPool(
                    ssl_context=self._context,
                    max_connections=1,
                    keepalive_expiry=_KEEP_ALIVE_S,
                    http2=self._settings.http2,
                    network_backend=CheckedAddresses(allow_private=self._settings.allow_private),
                )
                self._all.append(pool)
        return pool


def _tls(settings: HttpSink) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.tls_ca)
        if settings.tls_certificate is not None and settings.tls_key is not None:
            context.load_cert_chain(settings.tls_certificate, settings.tls_key)
    except OSError as error:
        raise SinkRefusedError(
            f"the TLS certificates cannot be read: {error}",
            hint="Check tls_ca, tls_certificate and tls_key of the sink.",
        ) from error
    return context
