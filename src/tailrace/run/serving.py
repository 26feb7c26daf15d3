"""`tailrace serve`: what the system tells about itself, over HTTP; and the watchers beside it.

One process with threads beside the server: the WAL monitor, the schema documents, the schemas of
Creek, the watcher for changes of tables that no row tells of, and the METRICS line of a bridge. It
reads status files, the log and PostgreSQL's catalogs, so it may die at any time.

The endpoints have no login and listen on loopback unless told otherwise. Those that do something
refuse what a foreign web page can make a browser send.
"""

from __future__ import annotations

import ipaddress
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import structlog
import uvicorn
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route

from tailrace.backfill import queue
from tailrace.creek import service as creek
from tailrace.errors import ConfigError, ProcessError, SinkError
from tailrace.jetstream import client as jetstream
from tailrace.jetstream.settings import JetStreamSettings
from tailrace.observe.endpoints import GRACE_S, application, listening, reply, settings
from tailrace.observe.metrics import exposition, metrics_line
from tailrace.run.monitor import Monitor
from tailrace.run.overview import Overview, problems, status_document
from tailrace.schemas import publisher as schemas
from tailrace.schemas.drift.watcher import Watcher

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from types import FrameType

    from starlette.applications import Starlette
    from starlette.requests import Request

    from tailrace.backfill.order import DesiredState
    from tailrace.config import Config
    from tailrace.postgres.publication import TableName

METRICS_S = 15.0
_ENDPOINTS = {
    "GET /health": "whether this server answers",
    "GET /ready": "whether everything works; 503 and the problems otherwise",
    "GET /status": "processes, pipelines, log, slot",
    "GET /metrics": "the same for Prometheus",
    "GET /streams/info?stream=NAME": "a JetStream stream",
    "GET /backfills": "all backfills",
    "POST /backfills": "ask for one: {pipeline, table, where, rate}",
    "POST /backfills/ID/pause": "or resume, or cancel",
    "POST /shutdown": "stop everything in order",
}


_WISHES: dict[str, DesiredState] = {"pause": "pause", "resume": "run", "cancel": "cancel"}


class _Asked(BaseModel):
    """The body of a request for a backfill."""

    model_config = ConfigDict(extra="forbid")

    pipeline: str
    table: str
    where: str = ""
    rate: float = 0.0


class Endpoints:
    """The HTTP side: routes over an overview and a way to shut down."""

    def __init__(
        self, config: Config, overview: Overview, shut_down: Callable[[], None] | None
    ) -> None:
        self._config = config
        self._overview = overview
        self._shut_down = shut_down

    def application(self) -> Starlette:
        """The ASGI application."""
        return application(
            [
                Route("/health", self._health),
                Route("/ready", self._ready),
                Route("/status", self._status),
                Route("/metrics", self._metrics),
                Route("/streams/info", self._stream_info),
                Route("/backfills", self._backfills),
                Route("/backfills", self._backfill, methods=["POST"]),
                Route("/backfills/{id}/{wish}", self._wish, methods=["POST"]),
                Route("/shutdown", self._shutdown, methods=["POST"]),
            ],
            _ENDPOINTS,
        )

    async def _health(self, _request: Request) -> Response:
        return reply({"status": "ok"})

    async def _ready(self, _request: Request) -> Response:
        found = problems(await run_in_threadpool(self._overview.look))
        if found:
            return reply({"status": "degraded", "problems": found}, 503)
        return reply({"status": "ready"})

    async def _status(self, _request: Request) -> Response:
        figures = await run_in_threadpool(self._overview.look)
        return reply(status_document(figures, self._config))

    async def _metrics(self, request: Request) -> Response:
        accept = request.headers.get("accept", "")
        body, kind = await run_in_threadpool(exposition, self._overview.look, accept)
        return Response(body, headers={"content-type": kind})

    async def _stream_info(self, request: Request) -> Response:
        sink = _first_sink(self._config)
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

    async def _backfills(self, _request: Request) -> Response:
        return reply(await run_in_threadpool(queue.list_backfills, self._config))

    async def _backfill(self, request: Request) -> Response:
        self._refuse_strangers(request)
        try:
            asked = _Asked.model_validate_json(await request.body())
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(map(str, first["loc"])) or "body"
            raise HTTPException(400, f"{place}: {first['msg']}") from error
        try:
            order = await run_in_threadpool(
                queue.submit, self._config, asked.pipeline, asked.table,
                where=asked.where, rate=asked.rate,
            )  # fmt: skip
        except ConfigError as error:
            raise HTTPException(400, f"{error} {error.hint}".strip()) from error
        return reply({"id": order.id, "table": str(order.table)}, 202)

    async def _wish(self, request: Request) -> Response:
        self._refuse_strangers(request)
        wish = _WISHES.get(request.path_params["wish"])
        if wish is None:
            raise HTTPException(404, "a backfill can be asked to pause, resume or cancel")
        try:
            order = await run_in_threadpool(
                queue.set_desired_state, self._config, request.path_params["id"], wish
            )
        except ConfigError as error:
            raise HTTPException(404, str(error)) from error
        return reply({"id": order.id, "desired_state": order.desired_state}, 202)

    def _refuse_strangers(self, request: Request) -> None:
        if not from_here(request.headers, self._config.http.host):
            raise HTTPException(403, "a web page of another site may not do this")

    async def _shutdown(self, request: Request) -> Response:
        self._refuse_strangers(request)
        if self._shut_down is None:
            raise HTTPException(409, "not run by `tailrace run`: stop each process by itself")
        structlog.get_logger().info("serve.shutdown_requested")
        return reply({"status": "shutting down"}, 202, BackgroundTask(self._shut_down))


def from_here(headers: Any, own_host: str) -> bool:
    """Whether a request comes from a program, or from a page that this server itself has served.

    Browsers name the page's site in Origin (and Sec-Fetch-Site); programs such as curl do not.
    That Origin and Host agree is not enough: a foreign name can be made to point here, so the name
    has to be one that nobody else can own.
    """
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if origin is None and site is None:
        return True
    if site not in (None, "same-origin", "none"):
        return False
    host = headers.get("host", "").lower()
    try:
        page = host if origin is None else urlsplit(origin).netloc.lower()
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return page == host and _own(name, own_host)


def _own(name: str, own_host: str) -> bool:
    return name in ("localhost", own_host.lower()) or _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _first_sink(config: Config) -> JetStreamSettings | None:
    for pipeline in config.pipelines.values():
        if isinstance(pipeline.sink, JetStreamSettings):
            return pipeline.sink
    return None


def run_serve(config: Config, *, supervised: bool = False, metrics_lines: bool = False) -> None:
    """Serve until SIGTERM or SIGINT."""
    monitor = Monitor(config)
    overview = Overview(config, lambda: monitor.figures)
    shut_down = _parent_stopper() if supervised else None
    app = Endpoints(config, overview, shut_down).application()
    server = uvicorn.Server(settings(app)) if config.http.port else None
    serving = _Serving(server)
    serving.beside("monitor", monitor.run)
    serving.beside("schemas", lambda stop: schemas.run(config, stop))
    for name, work in creek.parts(config):
        serving.beside(name, work)
    serving.beside("schema drift", _watcher(config).run)
    if metrics_lines:
        serving.beside("metrics", lambda stop: _print_metrics(overview, stop))
    with listening(config.http.host, config.http.port) as listener:
        serving.run(listener)


def _watcher(config: Config) -> Watcher:
    def fill(pipeline: str, table: TableName, reason: str) -> None:
        queue.submit(config, pipeline, table.quoted, again=reason)

    policies = {name: pipeline.schema_changes for name, pipeline in config.pipelines.items()}
    return Watcher(config, policies=policies, backfill=fill)


def _parent_stopper() -> Callable[[], None]:
    """Stops the supervisor; nobody else, if that one is gone and another is our parent now."""
    supervisor = os.getppid()

    def stop() -> None:
        if os.getppid() == supervisor:
            os.kill(supervisor, signal.SIGTERM)

    return stop


class _Serving:
    """The server and the threads beside it; when one fails, all end, to be started again."""

    def __init__(self, server: uvicorn.Server | None) -> None:
        self._server = server
        self._stop = threading.Event()
        self._stopping = False
        self._broken: list[str] = []
        self._threads: list[threading.Thread] = []

    def beside(self, name: str, work: Callable[[threading.Event], None]) -> None:
        """Run `work` in a thread until the end."""

        def guarded() -> None:
            try:
                work(self._stop)
            except Exception:
                structlog.get_logger().exception("serve.broken", part=name)
                self._broken.append(name)
                self._end()

        self._threads.append(threading.Thread(target=guarded, name=name, daemon=True))

    def _end(self) -> None:
        self._stopping = True
        if self._server is not None:
            self._server.should_exit = True

    def run(self, listener: socket.socket) -> None:
        """Serve until a signal or a failure."""

        def on_signal(_signum: int, _frame: FrameType | None) -> None:
            self._end()

        # uvicorn puts its own handlers over these while it runs, and calls them afterwards.
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, on_signal)
        for thread in self._threads:
            thread.start()
        if self._server is not None and not self._stopping:
            self._server.run(sockets=[listener])
        while not self._stopping:
            time.sleep(0.1)
        self._stop.set()
        for thread in self._threads:
            # Daemons: one that hangs in a connection attempt does not hold the process.
            thread.join(GRACE_S)
        if self._broken:
            raise ProcessError(f"these parts failed: {', '.join(self._broken)}")


def _print_metrics(overview: Overview, stop: threading.Event) -> None:
    while not stop.wait(METRICS_S):
        print(f"info(bridge): {metrics_line(overview.look())}", flush=True)  # noqa: T201
