"""`tailrace serve`: the process of the HTTP endpoints and of the watchers beside them.

The server runs in the main thread. Threads beside it run the WAL monitor, the schema documents,
Creek's schemas, the watcher for schema changes without row events, and the bridge's METRICS line.
This process only reads status files, the log and PostgreSQL's catalogs, so it may end at any time.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING

import structlog
import uvicorn

from tailrace.backfill import queue as backfills
from tailrace.creek import service as creek
from tailrace.errors import ProcessError
from tailrace.observe.bridge import metrics_line
from tailrace.observe.endpoints import GRACE_S, listening, settings
from tailrace.run.endpoints import Endpoints
from tailrace.run.monitor import Monitor
from tailrace.run.overview import Overview
from tailrace.schemas import publisher as schemas
from tailrace.schemas.drift.watcher import Watcher

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from types import FrameType

    from tailrace.config import Config
    from tailrace.postgres.names import TableName

METRICS_S = 15.0


def run_serve(config: Config, *, supervised: bool = False, metrics_lines: bool = False) -> None:
    """Serve until SIGTERM or SIGINT."""
    monitor = Monitor(config)
    overview = Overview(config, lambda: monitor.figures)
    shut_down = _parent_stopper() if supervised else None
    app = Endpoints(config, overview, shut_down).application()
    server = uvicorn.Server(settings(app)) if config.http.port else None
    process = ServeProcess(server)
    process.add_thread("monitor", monitor.run)
    process.add_thread("schemas", lambda stop: schemas.run(config, stop))
    for name, work in creek.parts(config):
        process.add_thread(name, work)
    process.add_thread("schema changes", _schema_change_watcher(config).run)
    if metrics_lines:
        process.add_thread("metrics", lambda stop: _print_metrics(overview, stop))
    with listening(config.http.host, config.http.port) as listener:
        process.run(listener)


def _schema_change_watcher(config: Config) -> Watcher:
    def request_backfill(pipeline: str, table: TableName, reason: str) -> None:
        backfills.submit(config, pipeline, table.quoted, again=reason)

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
    """The server and the threads beside it. If one fails, all end, and the supervisor restarts
    the process."""

    def __init__(self, server: uvicorn.Server | None) -> None:
        self._server = server
        self._stop = threading.Event()
        self._stopping = False
        self._failed: list[str] = []
        self._threads: list[threading.Thread] = []

    def add_thread(self, name: str, work: Callable[[threading.Event], None]) -> None:
        """Run `work` in a thread until the process stops."""

        def guarded() -> None:
            try:
                work(self._stop)
            except Exception:
                structlog.get_logger().exception("serve.thread_failed", thread=name)
                self._failed.append(name)
                self._begin_stop()

        self._threads.append(threading.Thread(target=guarded, name=name, daemon=True))

    def _begin_stop(self) -> None:
        self._stopping = True
        if self._server is not None:
            self._server.should_exit = True

    def run(self, listener: socket.socket) -> None:
        """Serve until a signal or a failure."""

        def on_signal(_signum: int, _frame: FrameType | None) -> None:
            self._begin_stop()

        # uvicorn installs its own handlers over these while it runs, and calls them afterwards.
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
            # The threads are daemons: one that hangs in a connect does not block the exit.
            thread.join(GRACE_S)
        if self._failed:
            raise ProcessError(f"these threads failed: {', '.join(self._failed)}")


def _print_metrics(overview: Overview, stop: threading.Event) -> None:
    while not stop.wait(METRICS_S):
        print(f"info(bridge): {metrics_line(overview.read())}", flush=True)  # noqa: T201
