"""The pages of the console as routes: views, confirmations, actions, login and static files."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse
from starlette.routing import Match, Mount, Route
from starlette.staticfiles import StaticFiles

from tailrace.access.identity import Level
from tailrace.console import api
from tailrace.console.catalog import ACTIONS, PAGES
from tailrace.console.forms import fields_of, parse, read_form
from tailrace.console.live import Content, Live
from tailrace.console.login import Login
from tailrace.console.outcome import explained, status_of
from tailrace.console.rendering import HEADERS, Rendering
from tailrace.errors import TailraceError
from tailrace.run.admission import LOGIN, LOGOUT, check_csrf, identity_of, require
from tailrace.run.origin import is_same_origin

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute

    from tailrace.console.page import Action, Document, Page
    from tailrace.console.system import System

_FOLDERS = ("/console", "/static")
_NO_STREAM = "there is no such page to refresh"


class Site:
    """The console over a running system. `stopping` says whether the process ends."""

    def __init__(self, system: System, *, stopping: Callable[[], bool] = lambda: False) -> None:
        self._system = system
        self._access = system.access
        self._live = Live(stopping)
        self._rendering = Rendering([page for page in PAGES if page.menu], system.access)
        self._pages = {page.address: page for page in PAGES}

    def routes(self) -> list[BaseRoute]:
        """All routes, those of the API included."""
        return [
            *(Route(action.address, self._action(action), methods=["GET", "POST"])
              for action in ACTIONS),
            Route("/console/live", self._stream),
            *(Route(page.address, self._page(page)) for page in PAGES),
            *Login(self._access, self._rendering).routes(),
            *api.routes(self._system),
            Mount("/static", _Static(packages=[("tailrace.console", "static")])),
        ]  # fmt: skip

    def refusal(self, request: Request, error: HTTPException) -> Response | None:
        """The page of an error, for requests of browsers for pages."""
        path = request.url.path
        if path not in ("/", LOGIN, LOGOUT) and not path.startswith(_FOLDERS):
            return None
        if error.status_code == 401 and request.method == "GET":
            return RedirectResponse(f"{LOGIN}?next={quote(_address(request), safe='')}", 303)
        return self._error(request, error)

    def _error(self, request: Request, error: HTTPException) -> Response:
        code, text, hint = explained(error)
        values = {"title": f"Error {error.status_code}", "code": code, "text": text, "hint": hint}
        return self._rendering.page(request, "error.html", values, error.status_code)

    def _page(self, page: Page) -> Callable[[Request], Any]:
        async def show(request: Request) -> Response:
            identity = require(request, page.level)
            try:
                query = _query(request)
                read = partial(page.read, self._system, query, identity.level)
                document = await self._system.in_turn(page, read)
            except (TailraceError, OSError) as error:
                raise status_of(error) from error
            values = self._values(page, request, document)
            values["done"] = self._access.sessions.take_note(self._cookie(request))
            return await run_in_threadpool(
                self._rendering.page, request, f"{page.name}.html", values
            )

        return show

    def _values(self, page: Page, request: Request, document: Document) -> dict[str, Any]:
        address = _address(request)
        # An older page of a list does not change.
        live = page.live and "before" not in request.query_params
        return {
            "page": page,
            "title": page.title,
            "d": document,
            "query": dict(request.query_params),
            "live": f"/console/live?{urlencode({'page': address})}" if live else "",
        }

    async def _stream(self, request: Request) -> Response:
        """The refreshed part of a page. The query names it as the browser's address does."""
        try:
            target = urlsplit(request.query_params.get("page", ""))
        except ValueError as error:
            raise HTTPException(404, _NO_STREAM) from error
        scope = {**request.scope, "path": target.path, "query_string": target.query.encode()}
        found = type(request)(scope, request.receive)
        for page in PAGES:
            match, child = Route(page.address, _nothing).matches(scope)
            if match is Match.FULL and page.live:
                require(request, page.level)
                scope |= child
                return self._live.stream(request, self._content(page, found))
        raise HTTPException(404, _NO_STREAM)

    def _content(self, page: Page, request: Request) -> Content:
        """What the stream of a page sends, while its sender is who it was."""
        identity, identify = identity_of(request), self._access.identify
        return Content(
            render=partial(self._refreshed, page, request),
            run=partial(self._system.in_turn, page),
            allowed=lambda: identify(request.headers, request.cookies) == identity,
            version=page.version and partial(page.version, self._system),
        )

    def _refreshed(self, page: Page, request: Request) -> str:
        try:
            level = identity_of(request).level
            document = page.read(self._system, _query(request), level)
        except (TailraceError, OSError) as error:
            code, text, hint = explained(status_of(error))
            values = {"code": code, "text": text, "hint": hint, "title": ""}
            return self._rendering.live(request, "error.html", values)
        values = self._values(page, request, document)
        return self._rendering.live(request, f"{page.name}.html", values)

    def _action(self, action: Action[Any]) -> Callable[[Request], Any]:
        async def handle(request: Request) -> Response:
            if request.method == "POST":
                return await self._perform(action, request)
            return await self._confirm(action, request)

        return handle

    async def _confirm(self, action: Action[Any], request: Request) -> Response:
        """The page that shows what an action will do. Without its fields, the page that asks."""
        require(request, Level.OPERATOR)
        given = dict(request.query_params)
        fields = fields_of(action.body, given)
        values: dict[str, Any] = {
            "title": action.title, "action": action, "fields": fields, "effect": None,
            "problem": "", "hint": "", "address": request.url.path, "back": _back(request),
            "subject": ", ".join(request.path_params.values()),
        }  # fmt: skip
        asked = [field for field in fields if field.name != "reason" and field.kind != "hidden"]
        given_all = all(field.value for field in asked if field.required)
        if not asked or (given_all and any(field.value for field in asked)):
            try:
                body = parse(action.body, given)
                effect = await run_in_threadpool(
                    action.effect, self._system, request.path_params, body
                )
                values["effect"] = effect
                values["fields"] = fields_of(action.body, {**given, **effect.resolved})
            except HTTPException as error:
                values["problem"] = error.detail
            except (TailraceError, OSError) as error:
                code, text, values["hint"] = explained(status_of(error))
                values["problem"] = f"{code}: {text}"
        return self._rendering.page(request, "confirm.html", values)

    async def _perform(self, action: Action[Any], request: Request) -> Response:
        if not is_same_origin(request.headers):
            raise HTTPException(403, "requests from web pages of other sites are refused")
        identity = require(request, Level.OPERATOR)
        form = await read_form(request)
        check_csrf(identity, form.get("csrf", ""))
        body = parse(action.body, form)
        try:
            done = await run_in_threadpool(
                action.perform, self._system, request.path_params, body, identity.name
            )
        except (TailraceError, OSError) as error:
            raise status_of(error) from error
        self._access.sessions.leave_note(self._cookie(request), done.text)
        return RedirectResponse(done.page, 303)

    def _cookie(self, request: Request) -> str:
        return request.cookies.get(self._access.cookie, "")


class _Static(StaticFiles):
    """Our own files, with the headers of pages."""

    def file_response(self, *arguments: Any, **more: Any) -> Response:
        response = super().file_response(*arguments, **more)
        response.headers.update({**HEADERS, "cache-control": "no-cache"})
        return response


async def _nothing(_request: Request) -> Response:
    raise HTTPException(404)


def _query(request: Request) -> Mapping[str, str]:
    return {**request.query_params, **request.path_params}


def _address(request: Request) -> str:
    url = request.url
    return url.path + (f"?{url.query}" if url.query else "")


def _back(request: Request) -> str:
    """The page above an action: that of its pipeline or list."""
    parts = request.url.path.split("/")
    return "/".join(parts[:3]) if parts[2] in ("backfills", "log") else "/".join(parts[:-1])
