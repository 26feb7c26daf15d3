"""The HTTP endpoints of `tailrace run`: health, status, metrics, backfills, shutdown.

They listen on loopback by default. Who may send which request is in `tailrace.run.admission`; how
the endpoints answer and listen is in `tailrace.observe.endpoints`; the pages of the console are in
`tailrace.console`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.routing import Route

from tailrace import audit
from tailrace.access.access import Access
from tailrace.access.identity import Level
from tailrace.backfill import queue as backfills
from tailrace.errors import ConfigError, SinkError
from tailrace.jetstream import client as jetstream
from tailrace.jetstream.settings import JetStreamSettings
from tailrace.observe.endpoints import application, reply
from tailrace.observe.hosts import AllowedHosts
from tailrace.observe.metrics import exposition
from tailrace.run import parked_endpoints, pull_endpoints
from tailrace.run.admission import Identification, accept, identity_of
from tailrace.run.document import status_document, unready
from tailrace.run.health import health_document
from tailrace.run.parked_endpoints import ParkedEndpoints
from tailrace.run.pull_endpoints import PullEndpoints

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.routing import BaseRoute

    from tailrace.backfill.order import DesiredState
    from tailrace.config import Config
    from tailrace.run.overview import Overview
    from tailrace.run.pull_clerk import Clerk

_ENDPOINTS = {
    "GET /health": "200 while this server answers",
    "GET /health/checks": "the watchdog's checks with their history, and the alerts",
    "GET /ready": "200 if everything works, 503 with the problems otherwise",
    "GET /status": "processes, pipelines, log and slot as JSON",
    "GET /metrics": "the same for Prometheus",
    "GET /streams/info?stream=NAME": "JetStream's description of a stream",
    "GET /backfills": "all backfills",
    "POST /backfills": "request a backfill: {pipeline, table, where, rate}",
    "POST /backfills/ID/pause": "pause, resume or cancel a backfill",
    **parked_endpoints.ENDPOINTS,
    **pull_endpoints.ENDPOINTS,
    "POST /shutdown": "stop all processes in order",
}

_ACTIONS: dict[str, DesiredState] = {"pause": "pause", "resume": "run", "cancel": "cancel"}


class _BackfillRequest(BaseModel):
    """The body of POST /backfills."""

    model_config = ConfigDict(extra="forbid")

    pipeline: str
    table: str
    where: str = ""
    rate: float = Field(default=0.0, ge=0, allow_inf_nan=False)


class Pages(Protocol):
    """The console, which is above this package."""

    def routes(self) -> Sequence[BaseRoute]:
        """Its routes."""

    def refusal(self, request: Request, error: HTTPException) -> Response | None:
        """The page of an error; None if the request is not for a page."""


class Endpoints:
    """The routes, over an overview and a function that stops the system.

    `failing` are the names of services of this process that are down, and `clerks` serve the
    consumers of sinks `pull`.
    """

    def __init__(
        self,
        config: Config,
        overview: Overview,
        shut_down: Callable[[], None] | None,
        *,
        token: str,
        failing: Callable[[], Sequence[str]] = tuple,
        clerks: Mapping[str, Clerk] | None = None,
        console: Callable[[Access], Pages] | None = None,
    ) -> None:
        self._config = config
        self._overview = overview
        self._shut_down = shut_down
        self._access = Access(config, token)
        self._console = console(self._access) if console else None
        self._failing = failing
        self._clerks = clerks or {}

    def application(self) -> Starlette:
        """The ASGI application."""
        pages = self._console
        return application(
            [
                *(pages.routes() if pages else []),
                Route("/health", self._health),
                Route("/health/checks", self._checks),
                Route("/ready", self._ready),
                Route("/status", self._status),
                Route("/metrics", self._metrics),
                Route("/streams/info", self._stream_info),
                Route("/backfills", self._list_backfills),
                Route("/backfills", self._request_backfill, methods=["POST"]),
                Route("/backfills/{id}/{action}", self._control_backfill, methods=["POST"]),
                *ParkedEndpoints(self._config, accept).routes(),
                *PullEndpoints(self._config, self._clerks, accept).routes(),
                Route("/shutdown", self._shutdown, methods=["POST"]),
            ],
            _ENDPOINTS,
            AllowedHosts(self._config.http.host, self._config.http.hosts),
            middleware=[Middleware(Identification, access=self._access)],
            refusal=pages.refusal if pages else None,
        )

    async def _health(self, _request: Request) -> Response:
        return reply({"status": "ok"})

    async def _checks(self, _request: Request) -> Response:
        return reply(await run_in_threadpool(health_document, self._config))

    async def _ready(self, request: Request) -> Response:
        reasons = unready(await run_in_threadpool(self._overview.read))
        reasons += [f"service {name}: failed, will be restarted" for name in self._failing()]
        if reasons:
            # Probes have no login, and need no names.
            anyone = self._access.needs_login and identity_of(request).level is Level.PUBLIC
            shown = {} if anyone else {"problems": reasons}
            return reply({"status": "degraded", **shown}, 503)
        return reply({"status": "ready"})

    async def _status(self, _request: Request) -> Response:
        figures = await run_in_threadpool(self._overview.read)
        return reply(status_document(figures, self._config))

    async def _metrics(self, request: Request) -> Response:
        accept = request.headers.get("accept", "")
        body, kind = await run_in_threadpool(exposition, self._overview.read, accept)
        return Response(body, headers={"content-type": kind})

    async def _stream_info(self, request: Request) -> Response:
        sink = _first_nats_sink(self._config)
        if sink is None:
            raise HTTPException(404, "no pipeline has a NATS sink")
        name = request.query_params.get("stream", sink.stream.name)
        try:
            info = await jetstream.stream_info(sink, name)
        except SinkError as error:
            raise HTTPException(502, f"{error.code}: {error}") from error
        if info is None:
            raise HTTPException(404, f"there is no stream {name!r}")
        return reply(info)

    async def _list_backfills(self, _request: Request) -> Response:
        return reply(await run_in_threadpool(backfills.list_backfills, self._config))

    async def _request_backfill(self, request: Request) -> Response:
        content = await accept(request)
        try:
            body = _BackfillRequest.model_validate_json(content)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(map(str, first["loc"])) or "body"
            raise HTTPException(400, f"{place}: {first['msg']}") from error
        try:
            order = await run_in_threadpool(
                backfills.submit, self._config, body.pipeline, body.table,
                where=body.where, rate=body.rate, user=identity_of(request).name,
            )  # fmt: skip
        except ConfigError as error:
            raise HTTPException(400, f"{error} {error.hint}".strip()) from error
        return reply({"id": order.id, "table": str(order.table)}, 202)

    async def _control_backfill(self, request: Request) -> Response:
        await accept(request)
        action = _ACTIONS.get(request.path_params["action"])
        if action is None:
            raise HTTPException(404, "unknown action: use pause, resume or cancel")
        try:
            order = await run_in_threadpool(
                backfills.set_desired_state, self._config, request.path_params["id"], action,
                user=identity_of(request).name,
            )  # fmt: skip
        except ConfigError as error:
            raise HTTPException(404, str(error)) from error
        return reply({"id": order.id, "desired_state": order.desired_state}, 202)

    async def _shutdown(self, request: Request) -> Response:
        await accept(request)
        if self._shut_down is None:
            raise HTTPException(409, "`tailrace run` does not supervise this: stop each process")
        user = identity_of(request).name
        await run_in_threadpool(audit.record, self._config.data, "system.shutdown", user=user)
        structlog.get_logger().info("serve.shutdown_requested", user=user)
        return reply({"status": "shutting down"}, 202, BackgroundTask(self._shut_down))


def _first_nats_sink(config: Config) -> JetStreamSettings | None:
    for pipeline in config.pipelines.values():
        if isinstance(pipeline.sink, JetStreamSettings):
            return pipeline.sink
    return None
