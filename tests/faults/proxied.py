"""Destinations with a server of their own, which is killed, and whose connections are cut."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from tailrace.testing import (
    EmbeddedKafka,
    EmbeddedNats,
    EmbeddedPostgres,
    EmbeddedRabbitMQ,
    EmbeddedRedis,
)
from tailrace.testing.proxy import TcpProxy
from tests.faults.destination import Destination

if TYPE_CHECKING:
    from pathlib import Path

S = TypeVar("S", EmbeddedRedis, EmbeddedPostgres, EmbeddedNats, EmbeddedRabbitMQ, EmbeddedKafka)


class Proxied(Destination, Generic[S]):
    """A server of its own, whose connections can be cut."""

    def __init__(self, folder: Path, seed: int, server: S) -> None:
        super().__init__(folder, seed)
        self.server: S = server

    @property
    def port(self) -> int:
        """Where the sink connects to."""
        return self._proxy.port

    def proxy(self) -> TcpProxy:
        """Between the sinks and the server."""
        return TcpProxy("127.0.0.1", self.server.port)

    def disturb(self) -> None:
        self._proxy.cut()

    def crash(self) -> bool:
        self.server.kill()
        self.server.start()
        return True

    def __enter__(self) -> Destination:
        self.server.start()
        self._proxy = self.proxy()
        return self

    def __exit__(self, *_: object) -> None:
        self._proxy.close()
        self.server.__exit__()
