"""`tailrace serve`: the process of the HTTP endpoints and of the services beside them.

The server runs in the main thread. Threads beside it (`tailrace.run.services`) create the streams,
and run the WAL monitor, the schema documents, Creek's schemas, the watcher for schema changes
without row events, the stores of sinks `pull`, and the bridge's METRICS line. They do not need the
endpoints: while the port is in use, consumers still get their schemas. This process reads status
files, the log and PostgreSQL's catalogs, and writes transactions to the stores of sinks `pull`, so
it may end at any time.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Protocol

import structlog
import uvicorn

from tailrace.access.access import check_protection
from tailrace.backfill import queue as backfills
from tailrace.creek import service as creek
from tailrace.errors import TailraceError, UnexpectedError
from tailrace.observe.bridge import metrics_line
from tailrace.observe.endpoints import GRACE_S, listening, settings
from tailrace.run import streams
from tailrace.run.endpoints import Endpoints
from tailrace.run.monitor import Monitor
from tailrace.run.overview import Overview
from tailrace.run.pull_endpoints import clerks_of
from tailrace.run.services import Services, restart_backoff
from tailrace.run.token import token_of
from tailrace.schemas import publisher as schemas
from tailrace.schemas.drift.watcher import Watcher

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence
    from types import FrameType

    from starlette.applications import Starlette

    from tailrace.access.access import Access
    from tailrace.backoff import Backoff
    from tailrace.config import Config, Http
    from tailrace.postgres.names import TableName
    from tailrace.run.endpoints import Pages

METRICS_S = 15.0
_TICK_S = 0.1


class Console(Protocol):
    """The pages, which are above this package."""

    def run(self, stop: threading.Event) -> None:
        """Sample trends until `stop` is set."""

    def site(
        self, access: Access, *, failing: Callable[[], Sequence[str]], stopping: Callable[[], bool]
    ) -> Pages:
        """The pages for one run of the HTTP server."""


def run_serve(
    config: Config,
    *,
    supervised: bool = False,
    metrics_lines: bool = False,
    console: Callable[[Config, Overview], Console] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT."""
    check_protection(config.http)
    monitor = Monitor(config)
    overview = Overview(config, lambda: monitor.figures)
    shut_down = _parent_stopper() if supervised else None
    services = Services()
    services.add("monitor", monitor.run)
    services.add("streams", lambda stop: streams.run(config, stop))
    services.add("schemas", lambda stop: schemas.run(config, stop))
    for name, work in creek.parts(config):
        services.add(name, work)
    services.add("schema changes", lambda stop: _schema_change_watcher(config).run(stop))
    clerks = clerks_of(config)
    for name, clerk in clerks.items():
        services.add(f"pull {name}", clerk.run)
    if metrics_lines:
        services.add("metrics", lambda stop: _print_metrics(overview, stop))
    pages = console(config, overview) if console and config.http.port else None
    if pages:
        services.add("trends", pages.run)

    def site(access: Access) -> Pages:
        assert pages is not None
        return pages.site(access, failing=services.failing, stopping=lambda: process.stopping)

    def endpoints() -> Starlette:
        return Endpoints(
            config, overview, shut_down, token=token_of(config), failing=services.failing,
            clerks=clerks, console=site if pages else None,
        ).application()  # fmt: skip

    process = ServeProcess(config.http, services, endpoints)
    process.run()


def _schema_change_watcher(config: Config) -> Watcher:
    def request_backfill(pipeline: str, table: TableName, reason: str) -> None:
        backfills.submit(config, pipeline, table.quoted, again=reason, user="tailrace")

    policies = {name: pipeline.schema_changes for name, pipeline in config.pipelines.items()}
    return Watcher(config, policies=policies, backfill=request_backfill)


def _parent_stopper() -> Callable[[], None]:
    """A function that stops the supervisor, and never the process that adopts its orphans."""
    supervisor = os.getppid()

    def stop() -> None:
        if os.getppid() == supervisor:
            os.kill(supervisor, signal.SIGTERM)

    return stop


class ServeProcess:
    """The HTTP server and the services beside it. Neither stops because the other fails."""

    def __init__(
        self,
        http: Http,
        services: Services,
        endpoints: Callable[[], Starlette],
        *,
        backoff: Callable[[], Backoff] = restart_backoff,
    ) -> None:
        self._http = http
        self._services = services
        self._endpoints = endpoints
        self._backoff = backoff()
        self._server: uvicorn.Server | None = None
        self._stopping = False

    @property
    def stopping(self) -> bool:
        """Whether a stop was requested: by `stop`, or by a signal to uvicorn while it runs."""
        return self._stopping or (self._server is not None and self._server.should_exit)

    def stop(self) -> None:
        """Request a stop. Safe in a signal handler."""
        self._stopping = True
        if self._server is not None:
            self._server.should_exit = True

    def run(self) -> None:
        """Run until a signal arrives."""

        def on_signal(_signum: int, _frame: FrameType | None) -> None:
            self.stop()

        # uvicorn installs its own handlers over these while it runs, and calls them afterwards.
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, on_signal)
        self.work()

    def work(self) -> None:
        """Run until `stop`."""
        self._services.start()
        while not self._stopping:
            if self._http.port:
                self._serve_http()
            else:
                time.sleep(_TICK_S)
        self._services.stop(GRACE_S)

    def _serve_http(self) -> None:
        """Serve until a stop. After a failure, such as a port in use, wait before returning."""
        self._backoff.running()
        try:
            with listening(self._http.host, self._http.port) as listener:
                tls = self._http.tls
                self._server = uvicorn.Server(
                    settings(
                        self._endpoints(),
                        certificate=tls.certificate if tls else None,
                        key=tls.key if tls else None,
                    )
                )
                if not self._stopping:
                    self._server.run(sockets=[listener])
        except Exception as error:
            known = error if isinstance(error, TailraceError) else UnexpectedError.wrap(error)
            delay_s = self._backoff.next_s()
            structlog.get_logger().error(
                "serve.http_failed", code=known.code, reason=str(known), hint=known.hint,
                retry_in_s=round(delay_s, 1),
            )  # fmt: skip
            retry_at = time.monotonic() + delay_s
            while not self._stopping and time.monotonic() < retry_at:
                time.sleep(_TICK_S)


def _print_metrics(overview: Overview, stop: threading.Event) -> None:
    while not stop.wait(METRICS_S):
        print(f"info(bridge): {metrics_line(overview.read())}", flush=True)  # noqa: T201
