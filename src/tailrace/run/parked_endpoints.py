"""Parked messages over HTTP: the same lists and orders as `tailrace parked`.

Reading needs the token as well: parked messages are rows of the source's tables.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import StreamingResponse
from starlette.routing import Route

from tailrace.access.identity import Level
from tailrace.errors import ConfigError
from tailrace.observe.endpoints import reply
from tailrace.parking import control
from tailrace.parking.selection import Selection
from tailrace.run import query
from tailrace.run.admission import identity_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from starlette.requests import Request
    from starlette.responses import Response

    from tailrace.config import Config

ENDPOINTS = {
    "GET /parked/PIPELINE": "a page of parked messages: ?limit, after, id, key, destination, code",
    "GET /parked/PIPELINE/NUMBER": "one parked message, with its payload",
    "GET /parked/PIPELINE/export": "all of them with payloads, as JSON Lines: ?id, key, …",
    "GET /parked/PIPELINE/orders": "retries and drops, and what became of their messages",
    "POST /parked/PIPELINE/retry": "send messages again: {ids, key, destination, code} or {all}",
    "POST /parked/PIPELINE/drop": "delete messages: the same",
}
_LIMIT, _MOST = 100, 1000


class _Selected(BaseModel):
    """The body of an order."""

    model_config = ConfigDict(extra="forbid")

    ids: tuple[str, ...] = ()
    key: str | None = None
    destination: str = ""
    code: str = ""
    all: bool = False

    def selection(self) -> Selection:
        return Selection(ids=self.ids, key=self.key, destination=self.destination, code=self.code)


class ParkedEndpoints:
    """The routes. `accept` checks that a request has the token, and returns its body."""

    def __init__(self, config: Config, accept: Callable[..., Awaitable[bytes]]) -> None:
        self._config = config
        self._accept = accept

    def routes(self) -> list[Route]:
        """The routes, in the order in which they are tried."""
        return [
            Route("/parked/{pipeline}", self._list),
            Route("/parked/{pipeline}/export", self._export),
            Route("/parked/{pipeline}/orders", self._orders),
            Route("/parked/{pipeline}/retry", self._retry, methods=["POST"]),
            Route("/parked/{pipeline}/drop", self._drop, methods=["POST"]),
            Route("/parked/{pipeline}/{number}", self._show),
        ]

    async def _list(self, request: Request) -> Response:
        await self._accept(request, level=Level.VIEWER)
        limit = query.number(request.query_params, "limit", _LIMIT, _MOST)
        after = query.number(request.query_params, "after", 0)
        selection = _selection(request)

        def read() -> dict[str, Any]:
            with control.listing(self._config, request.path_params["pipeline"]) as listing:
                page = listing.page(selection, after=after, limit=limit)
                return {
                    "totals": asdict(listing.totals()),
                    "messages": [control.message_document(each) for each in page],
                    "next": page[-1].seq if len(page) == limit else None,
                }

        return reply(await _found(read))

    async def _export(self, request: Request) -> Response:
        await self._accept(request, level=Level.VIEWER)
        pipeline, selection = request.path_params["pipeline"], _selection(request)
        listing = await _found(lambda: control.listing(self._config, pipeline))

        def lines() -> Iterator[bytes]:
            with listing:
                for document in control.export(listing, selection):
                    yield orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE)

        return StreamingResponse(lines(), media_type="application/jsonl")

    async def _show(self, request: Request) -> Response:
        await self._accept(request, level=Level.VIEWER)
        number = query.number(request.path_params, "number", 0)

        def read() -> dict[str, Any] | None:
            with control.listing(self._config, request.path_params["pipeline"]) as listing:
                page = listing.page(Selection(upto=number), after=number - 1, limit=1)
                if not page:
                    return None
                return control.message_document(page[0], listing.payload(page[0].seq))

        document = await _found(read)
        if document is None:
            raise HTTPException(404, f"message {number} is not parked")
        return reply(document)

    async def _orders(self, request: Request) -> Response:
        await self._accept(request, level=Level.VIEWER)

        def read() -> list[dict[str, Any]]:
            with control.listing(self._config, request.path_params["pipeline"]) as listing:
                return [asdict(each) for each in listing.orders()]

        return reply(await _found(read))

    async def _retry(self, request: Request) -> Response:
        return await self._order(request, "retry")

    async def _drop(self, request: Request) -> Response:
        return await self._order(request, "drop")

    async def _order(self, request: Request, action: Literal["retry", "drop"]) -> Response:
        content = await self._accept(request)
        try:
            body = _Selected.model_validate_json(content)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(map(str, first["loc"])) or "body"
            raise HTTPException(400, f"{place}: {first['msg']}") from error
        selection = body.selection()
        if body.all == bool(control.document_of(selection)):
            raise HTTPException(400, "set ids, key, destination or code, or else all")
        pipeline, user = request.path_params["pipeline"], identity_of(request).name
        order, matched = await _found(
            lambda: control.submit(self._config, pipeline, action, selection, user=user)
        )
        return reply({"id": order, "matched": matched}, 202)


async def _found(read: Callable[[], Any]) -> Any:
    try:
        return await run_in_threadpool(read)
    except ConfigError as error:
        raise HTTPException(404, f"{error} {error.hint}".strip()) from error


def _selection(request: Request) -> Selection:
    given = request.query_params
    return Selection(
        ids=tuple(given.getlist("id")),
        key=given.get("key"),
        destination=given.get("destination", ""),
        code=given.get("code", ""),
    )
