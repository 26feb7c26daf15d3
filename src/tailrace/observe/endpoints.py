"""HTTP endpoints that report on a process: how they answer, fail and listen.

Which endpoints there are is up to the process: `tailrace.run.endpoints`, `tailrace.broker`. They
listen on loopback by default. GET requests have no login, so every request must name this server in
its `Host` (`tailrace.observe.hosts`).
"""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING

import structlog
import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import Response

from tailrace.errors import ParameterError, ProcessError, TailraceError, UnexpectedError
from tailrace.observe.figure import as_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from starlette.background import BackgroundTask
    from starlette.requests import Request
    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp, Receive, Scope, Send

    from tailrace.observe.hosts import AllowedHosts

GRACE_S = 2
MAX_BODY_BYTES = 64 << 10
_HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
"""Documents have rows, and are out of date at once."""


def application(
    routes: Sequence[BaseRoute],
    endpoints: Mapping[str, str],
    hosts: AllowedHosts,
    *,
    middleware: Sequence[Middleware] = (),
    refusal: Callable[[Request, HTTPException], Response | None] | None = None,
) -> Starlette:
    """The ASGI application. An unknown path or method is answered with the list of endpoints.

    `refusal` may answer an error in its own way.
    """

    async def refuse(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if refusal and (page := refusal(request, error)):
            return page
        content: dict[str, object] = {"error": error.detail}
        if hint := getattr(error, "hint", ""):
            content["hint"] = hint
        if error.status_code in (404, 405):
            content["endpoints"] = endpoints
        response = reply(content, error.status_code)
        response.headers.update(error.headers or {})
        return response

    async def invalid(request: Request, error: Exception) -> Response:
        return await refuse(request, HTTPException(400, str(error)))

    async def fail(request: Request, error: Exception) -> Response:
        known = error if isinstance(error, TailraceError) else UnexpectedError.wrap(error)
        return await refuse(request, HTTPException(500, f"{known.code}: {known}"))

    return Starlette(
        routes=routes,
        middleware=[Middleware(_HostCheck, hosts=hosts), *middleware],
        exception_handlers={HTTPException: refuse, ParameterError: invalid, Exception: fail},
    )


class _HostCheck:
    """Answers requests that name another server with 421."""

    def __init__(self, app: ASGIApp, hosts: AllowedHosts) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            host = Headers(scope=scope).get("host")
            local, *_ = scope.get("server") or [""]
            # HTTP/1.0 allows requests without `Host`; browsers always send one.
            if host is not None and not self._hosts.allow(host, local):
                error = f"this server is not {host!r}: add the name to http.hosts in the settings"
                await reply({"error": error}, 421)(scope, receive, send)
                return
        await self._app(scope, receive, send)


async def read_body(request: Request) -> bytes:
    """The body of a request; 413 if it is too large."""
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > MAX_BODY_BYTES:
            raise HTTPException(413, f"the body may have at most {MAX_BODY_BYTES:,} bytes")
    return bytes(content)


def reply(content: object, code: int = 200, after: BackgroundTask | None = None) -> Response:
    """A JSON response, and a task to run after it is sent."""
    return Response(
        as_json(content), code, _HEADERS, media_type="application/json", background=after
    )


def settings(
    app: Starlette, *, certificate: Path | None = None, key: Path | None = None
) -> uvicorn.Config:
    """uvicorn's settings: no log lines of its own, and a short grace period on shutdown."""
    return _Settings(
        app,
        ssl_certfile=certificate,
        ssl_keyfile=key,
        # The limit for logins is per address: a client must not choose its own.
        proxy_headers=False,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
    )


class _Settings(uvicorn.Config):
    def load(self) -> None:
        super().load()
        if self.ssl is not None:
            # The default is what OpenSSL was built with.
            self.ssl.minimum_version = ssl.TLSVersion.TLSv1_2


def listening(host: str, port: int) -> socket.socket:
    """A listening socket; with port 0, a socket that does not listen: HTTP is off."""
    if not port:
        return socket.socket()
    try:
        [family, *_] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server((host, port), family=family)
    except OSError as error:
        raise ProcessError(
            f"cannot listen on {host}:{port}: {error.strerror or error}",
            hint="Set http.port (or --port) to a free port, or to 0 to turn HTTP off.",
        ) from error
    structlog.get_logger().info("serve.listening", host=host, port=port)
    return listener
