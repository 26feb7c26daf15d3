"""`/api/v1`: the documents of all pages, and all actions, for programs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.routing import Route

from tailrace.access.identity import Level
from tailrace.console.catalog import ACTIONS, PAGES
from tailrace.console.forms import validated
from tailrace.console.openapi import openapi
from tailrace.console.outcome import status_of
from tailrace.errors import TailraceError
from tailrace.observe.endpoints import reply
from tailrace.run.admission import accept, identity_of, require

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request
    from starlette.responses import Response

    from tailrace.console.page import Action, Page
    from tailrace.console.system import System

PREFIX = "/api/v1"
_DRY_RUN = "dry_run"
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


def routes(system: System) -> list[Route]:
    """The routes of the API."""

    async def description(_request: Request) -> Response:
        access = system.access
        found = openapi(PAGES, ACTIONS, cookie=access.cookie, needs_login=access.needs_login)
        return reply(found)

    return [
        Route(f"{PREFIX}/openapi.json", description),
        *(
            Route(f"{PREFIX}{each.path}", _perform(system, each), methods=["POST"])
            for each in ACTIONS
        ),
        *(Route(f"{PREFIX}{each.path}", _read(system, each)) for each in PAGES),
    ]


def _read(system: System, page: Page) -> Callable[[Request], Any]:
    async def read(request: Request) -> Response:
        identity = require(request, page.level)
        query = {**request.query_params, **request.path_params}
        try:
            read = partial(page.read, system, query, identity.level)
            return reply(await system.in_turn(page, read))
        except (TailraceError, OSError) as error:
            raise status_of(error) from error

    return read


def _perform(system: System, action: Action[Any]) -> Callable[[Request], Any]:
    """An action; with `?dry_run=true` only what it would do."""

    async def perform(request: Request) -> Response:
        content = await accept(request, level=Level.OPERATOR)
        dry_run = _is_dry_run(request)
        body = validated(lambda: action.body.model_validate_json(content or b"{}"))
        path = request.path_params
        try:
            if dry_run:
                effect = await run_in_threadpool(action.effect, system, path, body)
                shown = {"effect": effect.lines, "warning": effect.warning}
                return reply(shown | {"resolved": effect.resolved})
            user = identity_of(request).name
            done = await run_in_threadpool(action.perform, system, path, body, user)
        except (TailraceError, OSError) as error:
            raise status_of(error) from error
        return reply(done.document, 202)

    return perform


def _is_dry_run(request: Request) -> bool:
    """Whether an action is only shown. Anything that is not clear is refused: the client that
    sends it does not expect that the action is performed."""
    given = request.query_params.multi_items()
    if unknown := sorted({name for name, _ in given} - {_DRY_RUN}):
        raise HTTPException(400, f"unknown parameter {unknown[0]!r}: an action has only {_DRY_RUN}")
    if not given:
        return False
    value = _BOOLEANS.get(given[0][1].lower())
    if value is None or len(given) > 1:
        raise HTTPException(400, f"{_DRY_RUN} must be given once, as true or false")
    return value
