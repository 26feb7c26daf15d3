"""`/health`, `/ready`, `/status` and `/metrics` of the broker, in the event loop of its clients."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import uvicorn
from starlette.responses import Response
from starlette.routing import Route

from tailrace.broker.figures import Collector, document
from tailrace.observe.endpoints import application, reply, settings
from tailrace.observe.metrics import encoded

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from starlette.applications import Starlette
    from starlette.requests import Request

    from tailrace.broker.broker import Broker
    from tailrace.broker.server import Server
    from tailrace.observe.hosts import AllowedHosts

_ENDPOINTS = {
    "GET /health": "200 while the process runs",
    "GET /ready": "200 while PostgreSQL is reachable and this broker holds its lock; otherwise 503",
    "GET /status": "connections, topics, groups, counters",
    "GET /metrics": "the same as metrics for Prometheus",
}


class Endpoints(uvicorn.Server):
    """The HTTP server of the broker."""

    def __init__(self, broker: Broker, server: Server, hosts: AllowedHosts) -> None:
        super().__init__(settings(self._application(hosts)))
        self._broker, self._listener = broker, server

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers: the broker handles signals and stops this server."""
        yield

    async def run_on(self, listener: socket.socket) -> None:
        """Serve until `should_exit` is set."""
        await self.serve(sockets=[listener])

    def _application(self, hosts: AllowedHosts) -> Starlette:
        routes = [
            Route("/health", self._health),
            Route("/ready", self._ready),
            Route("/status", self._status),
            Route("/metrics", self._metrics),
        ]
        return application(routes, _ENDPOINTS, hosts)

    async def _health(self, _request: Request) -> Response:
        return reply({"status": "ok"})

    async def _ready(self, _request: Request) -> Response:
        if self._broker.connected:
            return reply({"status": "ready"})
        return reply({"status": "degraded", "problems": ["PostgreSQL is not reachable"]}, 503)

    async def _status(self, _request: Request) -> Response:
        return reply(document(self._broker, self._listener))

    async def _metrics(self, request: Request) -> Response:
        accept = request.headers.get("accept", "")
        body, kind = encoded(Collector(self._broker, self._listener), accept)
        return Response(body, headers={"content-type": kind})
