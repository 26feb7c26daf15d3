"""HTTP endpoints that report on a process: how they answer, fail and listen.

Which endpoints there are is up to the process: `tailrace.run.endpoints`, `tailrace.broker`. They
have no login and listen on loopback by default.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import orjson
import structlog
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import Response

from tailrace.errors import ProcessError, TailraceError, UnexpectedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from starlette.background import BackgroundTask
    from starlette.requests import Request
    from starlette.routing import Route

GRACE_S = 2


def application(routes: Sequence[Route], endpoints: Mapping[str, str]) -> Starlette:
    """The ASGI application. An unknown path or method is answered with the list of endpoints."""

    async def refusal(_request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        content: dict[str, object] = {"error": error.detail}
        if error.status_code in (404, 405):
            content["endpoints"] = endpoints
        response = reply(content, error.status_code)
        response.headers.update(error.headers or {})
        return response

    return Starlette(
        routes=routes, exception_handlers={HTTPException: refusal, Exception: _failure}
    )


def reply(content: object, code: int = 200, after: BackgroundTask | None = None) -> Response:
    """A JSON response, and a task to run after it is sent."""
    # With the option, LSNs (a subclass of int) reach `default` and become text.
    body = orjson.dumps(content, default=str, option=orjson.OPT_PASSTHROUGH_SUBCLASS) + b"\n"
    return Response(body, code, media_type="application/json", background=after)


async def _failure(_request: Request, error: Exception) -> Response:
    known = error if isinstance(error, TailraceError) else UnexpectedError.wrap(error)
    return reply({"error": f"{known.code}: {known}"}, 500)


def settings(app: Starlette) -> uvicorn.Config:
    """uvicorn's settings: no log lines of its own, and a short grace period on shutdown."""
    return uvicorn.Config(
        app,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
    )


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
