"""Messages over HTTP for consumers of sinks `pull`: receive, acknowledge, reject, extend.

A consumer needs a token of its pipeline, or that of the endpoints. What operators do with exhausted
messages needs the latter.
"""

from __future__ import annotations

import asyncio
import base64
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError, model_validator
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.routing import Route

from tailrace import audit, headers
from tailrace.observe.endpoints import reply
from tailrace.position import Lsn, Position
from tailrace.run.admission import identity_of
from tailrace.run.pull_clerk import Clerk
from tailrace.run.query import MOST, number
from tailrace.sinks.documents import json_flaw
from tailrace.sinks.pull.database import store_of
from tailrace.sinks.pull.listing import Listing
from tailrace.sinks.pull.queue import DeliveryId, Rules
from tailrace.sinks.pull.settings import PullSink

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from tailrace.config import Config, Pipeline
    from tailrace.sinks.pull.listing import ExhaustedMessage
    from tailrace.sinks.pull.queue import Delivery

M = TypeVar("M", bound=BaseModel)

ENDPOINTS = {
    "POST /v1/pull/PIPELINE/receive": "messages: {batch_size, wait_ms, visibility_ms}",
    "POST /v1/pull/PIPELINE/ack": "acknowledge messages: {ack_ids}",
    "POST /v1/pull/PIPELINE/nack": "reject messages: {ack_ids, delay_ms, counts}",
    "POST /v1/pull/PIPELINE/extend": "keep messages for longer: {ack_ids, visibility_ms}",
    "GET /v1/pull/PIPELINE/exhausted": "messages that were delivered too often: ?limit, after",
    "POST /v1/pull/PIPELINE/retry": "deliver exhausted messages again: {numbers} or {all}",
    "POST /v1/pull/PIPELINE/drop": "delete exhausted messages: the same",
}
_MOST = 1000
_MAX_WAIT_MS = 300_000
_MAX_VISIBILITY_MS = 12 * 3600 * 1000
_MAX_DELAY_MS = 24 * 3600 * 1000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WORD = 1 << 64


def parse_ack_id(text: object) -> DeliveryId:
    """A delivery from the text that names it.

    >>> parse_ack_id("42-1f")
    DeliveryId(seq=42, token=31)
    """
    number, _, token = str(text).partition("-")
    try:
        found = DeliveryId(int(number), int(token, 16))
    except ValueError:
        found = DeliveryId(-1, -1)
    if not (0 <= found.seq < _WORD // 2 and 0 <= found.token < _WORD // 2):
        raise ValueError(f"must be an ack_id as it was received, got {str(text)[:100]!r}")
    return found


def ack_id(delivery: DeliveryId) -> str:
    """The text that names a delivery.

    >>> ack_id(DeliveryId(42, 31))
    '42-1f'
    """
    return f"{delivery.seq}-{delivery.token:x}"


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Receive(_Body):
    """The body of a request for messages."""

    batch_size: int = Field(default=1, ge=1, le=_MOST)
    wait_ms: int = Field(default=0, ge=0, le=_MAX_WAIT_MS)
    visibility_ms: int | None = Field(default=None, ge=100, le=_MAX_VISIBILITY_MS)


class _Ack(_Body):
    """Some deliveries."""

    ack_ids: list[Annotated[DeliveryId, PlainValidator(parse_ack_id)]] = Field(max_length=_MOST)


class _Nack(_Ack):
    """Deliveries that failed."""

    delay_ms: int = Field(default=0, ge=0, le=_MAX_DELAY_MS)
    counts: bool = True
    """Whether they count as delivered. Not if the consumer has not looked at them."""

    @model_validator(mode="after")
    def _delay_counts(self) -> Self:
        if self.delay_ms and not self.counts:
            raise ValueError("without `counts` there is no `delay_ms`")
        return self


class _Extend(_Ack):
    """Deliveries that take longer."""

    visibility_ms: int = Field(ge=100, le=_MAX_VISIBILITY_MS)


class _Exhausted(_Body):
    """Some exhausted messages."""

    numbers: list[Annotated[int, Field(ge=0, le=MOST)]] = Field(default=[], max_length=_MOST)
    all: bool = False


def clerks_of(config: Config) -> dict[str, Clerk]:
    """A clerk for each pipeline with a sink `pull`."""
    return {
        name: Clerk(store_of(config.data, name), rules_of(pipeline))
        for name, pipeline in config.pipelines.items()
        if isinstance(pipeline.sink, PullSink)
    }


def rules_of(pipeline: Pipeline) -> Rules:
    """How the consumers of a pipeline are served."""
    sink = pipeline.sink
    assert isinstance(sink, PullSink)
    return Rules(
        max_out=sink.max_ack_pending,
        max_deliveries=sink.max_deliveries,
        max_bytes=sink.max_receive_bytes,
        blocks=pipeline.parks != "message",
    )


class PullEndpoints:
    """The routes. `accept` checks that a request has the token of the endpoints, or one of some
    others, and returns its body."""

    def __init__(
        self,
        config: Config,
        clerks: Mapping[str, Clerk],
        accept: Callable[..., Awaitable[bytes]],
    ) -> None:
        self._config = config
        self._clerks = clerks
        self._accept = accept

    def routes(self) -> list[Route]:
        """The routes, in the order in which they are tried."""
        posted = {
            "receive": self._receive,
            "ack": self._ack,
            "nack": self._nack,
            "extend": self._extend,
            "retry": self._retry,
            "drop": self._drop,
        }
        return [
            Route("/v1/pull/{pipeline}/exhausted", self._exhausted),
            *(
                Route(f"/v1/pull/{{pipeline}}/{name}", answer, methods=["POST"])
                for name, answer in posted.items()
            ),
        ]

    async def _receive(self, request: Request) -> Response:
        body = await self._body(request, _Receive)
        name = self._name(request)
        pipeline = self._config.pipelines[name]
        assert isinstance(pipeline.sink, PullSink)
        visibility_ms = body.visibility_ms or int(pipeline.sink.visibility_s * 1000)
        found = await _while_connected(
            request,
            self._clerks[name].receive(
                body.batch_size, visibility_ms=visibility_ms, wait_s=body.wait_ms / 1000
            ),
        )
        plain = pipeline.format == "json"
        messages = [_message(each, plain=plain) for each in found]
        return reply({"messages": messages, "visible_ms": visibility_ms})

    async def _ack(self, request: Request) -> Response:
        body = await self._body(request, _Ack)
        known = await self._clerk(request).acknowledge(body.ack_ids)
        return _known("acknowledged", body, known)

    async def _nack(self, request: Request) -> Response:
        body = await self._body(request, _Nack)
        clerk = self._clerk(request)
        if body.counts:
            known = await clerk.reject(body.ack_ids, delay_ms=body.delay_ms)
        else:
            known = await clerk.take_back(body.ack_ids)
        return _known("rejected", body, known)

    async def _extend(self, request: Request) -> Response:
        body = await self._body(request, _Extend)
        known = await self._clerk(request).extend(body.ack_ids, visibility_ms=body.visibility_ms)
        return _known("extended", body, known)

    async def _exhausted(self, request: Request) -> Response:
        await self._accept(request)
        name = self._name(request)
        limit, after = (number(request.query_params, key, value) for key, value in _PAGE.items())

        def read() -> list[ExhaustedMessage]:
            with Listing(store_of(self._config.data, name)) as listing:
                return listing.exhausted(after=after, limit=min(limit, _MOST))

        found = await run_in_threadpool(read)
        documents = [exhausted_document(each) for each in found]
        return reply({"messages": documents, "next": found[-1].number if found else None})

    async def _retry(self, request: Request) -> Response:
        return await self._decide(request, "retry")

    async def _drop(self, request: Request) -> Response:
        return await self._decide(request, "drop")

    async def _decide(self, request: Request, action: str) -> Response:
        body = _valid(_Exhausted, await self._accept(request))
        if body.all == bool(body.numbers):
            raise HTTPException(400, "set numbers, or else all")
        name = self._name(request)
        numbers = None if body.all else body.numbers
        await run_in_threadpool(
            audit.record, self._config.data, f"pull.{action}", user=identity_of(request).name,
            pipeline=name, selection=body.model_dump(exclude_defaults=True),
        )  # fmt: skip
        count = await self._clerks[name].call(
            lambda store, _: store.drop(numbers) if action == "drop" else store.retry(numbers)
        )
        return reply({"matched": count})

    async def _body(self, request: Request, kind: type[M]) -> M:
        """The body of a consumer's request."""
        pipeline = self._config.pipelines.get(request.path_params["pipeline"])
        sink = pipeline.sink if pipeline is not None else None
        tokens = sink.tokens.values() if isinstance(sink, PullSink) else ()
        content = await self._accept(request, [token.get_secret_value() for token in tokens])
        self._name(request)
        return _valid(kind, content)

    def _clerk(self, request: Request) -> Clerk:
        return self._clerks[self._name(request)]

    def _name(self, request: Request) -> str:
        name: str = request.path_params["pipeline"]
        if name not in self._clerks:
            raise HTTPException(404, f"there is no pipeline {name!r} with a sink pull")
        return name


_PAGE = {"limit": 100, "after": 0}


def _valid(kind: type[M], content: bytes) -> M:
    try:
        return kind.model_validate_json(content or b"{}")
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "body"
        raise HTTPException(400, f"{place}: {first['msg']}") from error


async def _while_connected(
    request: Request, receiving: Awaitable[list[Delivery]]
) -> list[Delivery]:
    """Wait for messages as long as the consumer does: others get them if it has disconnected."""
    task = asyncio.ensure_future(receiving)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            return []
        return task.result()
    finally:
        gone.cancel()
        task.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _message(each: Delivery, *, plain: bool) -> dict[str, Any]:
    """A message as consumers receive it. `plain`: its payload should be JSON."""
    return {
        "ack_id": ack_id(each.delivery),
        "id": each.id,
        "destination": each.destination,
        **_text("key", each.key),
        "position": str(Position(Lsn(each.lsn % _WORD), each.ordinal % _WORD)),
        "committed_at": _EPOCH + timedelta(microseconds=each.committed_at),
        "deliveries": each.deliveries,
        **({"headers": headers.loaded(each.headers)} if each.headers else {}),
        **_payload(each.payload, plain=plain),
    }


def exhausted_document(each: ExhaustedMessage) -> dict[str, Any]:
    """An exhausted message as JSON."""
    return {
        "number": each.number,
        "id": each.id,
        "destination": each.destination,
        **_text("key", each.key),
        "deliveries": each.deliveries,
        "arrived_at": (_EPOCH + timedelta(milliseconds=each.arrived_at)).isoformat(),
        **_text("payload", each.payload),
    }


def _payload(payload: bytes, *, plain: bool) -> dict[str, Any]:
    # The bytes are sent as they are: a number of JSON would lose digits. One payload that is not
    # JSON would make the answer unreadable.
    if plain and not json_flaw(payload):
        return {"data": orjson.Fragment(payload)}
    return {"data_base64": base64.b64encode(payload).decode()}


def _text(name: str, value: bytes | None) -> dict[str, str | None]:
    try:
        return {name: None if value is None else value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value or b"").decode()}


def _known(what: str, body: _Ack, known: set[DeliveryId]) -> Response:
    """How many deliveries a request concerned, and those that had ended before."""
    ended = [ack_id(each) for each in body.ack_ids if each not in known]
    return reply({what: len(known), "expired": ended})
