"""Login and logout. A login always begins a new session, with a new cookie."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse
from starlette.routing import Route

from tailrace.access.sessions import LIFETIME_S
from tailrace.console.forms import read_form
from tailrace.console.lane import Lane
from tailrace.run.admission import LOGIN, LOGOUT, check_csrf, identity_of
from tailrace.run.origin import is_same_origin

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from tailrace.access.access import Access
    from tailrace.console.rendering import Rendering

_MAX_CHARACTERS = 1000
_MAX_WAITING = 50
"""Logins, some seconds of work."""


class Login:
    """The routes of the login."""

    def __init__(self, access: Access, rendering: Rendering) -> None:
        self._access = access
        self._rendering = rendering
        # A hash takes 16 MiB and a tenth of a second of a core.
        self._lane = Lane(1, waiting=_MAX_WAITING)
        self._events = structlog.get_logger()

    def routes(self) -> list[Route]:
        """Login and logout."""
        return [
            Route(LOGIN, self._form),
            Route(LOGIN, self._log_in, methods=["POST"]),
            Route(LOGOUT, self._log_out, methods=["POST"]),
        ]

    async def _form(self, request: Request) -> Response:
        return self._page(request, "", request.query_params.get("next", "/"))

    def _page(self, request: Request, problem: str, target: str, status: int = 200) -> Response:
        values: dict[str, Any] = {"title": "Log in", "problem": problem, "target": _local(target)}
        return self._rendering.page(request, "login.html", values, status)

    async def _log_in(self, request: Request) -> Response:
        if not is_same_origin(request.headers):
            raise HTTPException(403, "requests from web pages of other sites are refused")
        form = await read_form(request)
        address = request.client.host if request.client else ""
        target = form.get("next", "/")
        name, secret = form.get("name", ""), form.get("secret", "")
        user = self._access.known(name)
        if wait_s := self._access.attempts.begin(address, user):
            problem = f"Too many failed logins. Try again in {math.ceil(wait_s)} s."
            response = self._page(request, problem, target, 429)
            response.headers["retry-after"] = str(math.ceil(wait_s))
            return response
        identity = None
        if len(name) + len(secret) <= _MAX_CHARACTERS:
            identity = await self._lane.run(partial(self._access.log_in, name, secret))
        if identity is None:
            self._access.attempts.failed(address)
            self._events.warning("console.login_failed", address=address)
            what = "Name or password is wrong." if self._access.has_users else "The token is wrong."
            return self._page(request, what, target, 401)
        self._access.attempts.succeeded(address, user)
        self._access.sessions.end(request.cookies.get(self._access.cookie, ""))
        self._events.info("console.logged_in", user=identity.name, address=address)
        response = RedirectResponse(_local(target), 303)
        response.set_cookie(
            self._access.cookie, self._access.sessions.create(identity), max_age=int(LIFETIME_S),
            httponly=True, samesite="strict", secure=self._access.secure,
        )  # fmt: skip
        return response

    async def _log_out(self, request: Request) -> Response:
        if not is_same_origin(request.headers):
            raise HTTPException(403, "requests from web pages of other sites are refused")
        form = await read_form(request)
        check_csrf(identity_of(request), form.get("csrf", ""))
        self._access.sessions.end(request.cookies.get(self._access.cookie, ""))
        response = RedirectResponse("/", 303)
        response.delete_cookie(
            self._access.cookie, httponly=True, samesite="strict", secure=self._access.secure
        )
        return response


def _local(target: str) -> str:
    r"""A path of this site; never another one.

    >>> _local("/console/log"), _local("//evil.example"), _local("/\\evil.example")
    ('/console/log', '/', '/')
    """
    plain = target.isascii() and target.isprintable() and "\\" not in target
    return target if plain and target.startswith("/") and not target.startswith("//") else "/"
