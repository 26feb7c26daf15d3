"""Which requests are let in: who sends them, and what they may do.

| request                                     | answer without the right          |
|---------------------------------------------|-----------------------------------|
| any, while users are configured             | 401, or the login page            |
| that reads rows (changes, parked messages)  | 401                               |
| that changes something, from another site   | 403                               |
| that changes something, by a viewer         | 403                               |
| the same from a browser without its token   | 403: the form is of another site  |
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING
from urllib.parse import quote

from starlette.datastructures import URL, Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse

from tailrace.access.identity import PUBLIC, Identity, Level
from tailrace.observe.endpoints import read_body, reply
from tailrace.run.origin import is_same_origin
from tailrace.run.token import FILE, is_authorised

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.types import ASGIApp, Receive, Scope, Send

    from tailrace.access.access import Access

CSRF_HEADER = "x-csrf-token"
LOGIN, LOGOUT = "/login", "/logout"
_OPEN = ("/health", "/ready", LOGIN)
_OPEN_FOLDERS = ("/static/", "/v1/pull/")
"""Style and script of the login page; requests of consumers, which have tokens of their own."""
_PROGRAMS = "/api/"
"""Never answered with a page."""
_HOW = (
    "this request needs the header `Authorization: Bearer TOKEN`; the token is http.token of the "
    f"settings, or else in the file {FILE} of the data folder, or one of `tailrace token create`"
)


def identity_of(request: Request) -> Identity:
    """Who sends a request, as `Identification` has found."""
    found: Identity = getattr(request.state, "identity", PUBLIC)
    return found


def require(request: Request, level: Level) -> Identity:
    """The sender, if it may do what needs this level. Raises HTTPException."""
    identity = identity_of(request)
    if identity.level >= level:
        return identity
    if identity.level is Level.PUBLIC:
        raise HTTPException(401, _HOW, {"www-authenticate": "Bearer"})
    raise HTTPException(403, f"{identity.name} may only read: this needs the role operator")


def check_csrf(identity: Identity, sent: str) -> None:
    """Refuse a form that was not made for this session. Programs have no session."""
    expected = identity.csrf.encode()
    if expected and not hmac.compare_digest(sent.encode("utf-8", "surrogatepass"), expected):
        raise HTTPException(403, "this form is of another session: load the page again")


async def accept(
    request: Request, tokens: Iterable[str] = (), *, level: Level = Level.OPERATOR
) -> bytes:
    """The body of a request that a program sends, if it is allowed to.

    It needs the level, or one of `tokens`.
    """
    if not is_same_origin(request.headers):
        raise HTTPException(403, "requests from web pages of other sites are refused")
    header = request.headers.get("authorization", "")
    if not any(is_authorised(header, token) for token in tokens):
        identity = require(request, level)
        if request.method != "GET":
            check_csrf(identity, request.headers.get(CSRF_HEADER, ""))
    return await read_body(request)


class Identification:
    """Finds out who sends a request. With users, it also sends everyone else to the login."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] == "http":
            if not scope["query_string"].isascii():
                await reply({"error": "the query must be percent-encoded"}, 400)(
                    scope, receive, send
                )
                return
            request = Request(scope)
            identity = self._access.identify(request.headers, request.cookies)
            scope.setdefault("state", {})["identity"] = identity
            path = scope["path"]
            is_open = path in _OPEN or path.startswith(_OPEN_FOLDERS)
            if self._access.needs_login and identity.level is Level.PUBLIC and not is_open:
                await self._refuse(scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        browser = "text/html" in Headers(scope=scope).get("accept", "")
        if browser and scope["method"] == "GET" and not scope["path"].startswith(_PROGRAMS):
            url = URL(scope=scope)
            page = quote(url.path + (f"?{url.query}" if url.query else ""), safe="")
            response = RedirectResponse(f"{LOGIN}?next={page}", 303)
            await response(scope, receive, send)
            return
        refusal = reply({"error": _HOW}, 401)
        refusal.headers["www-authenticate"] = "Bearer"
        await refusal(scope, receive, send)
