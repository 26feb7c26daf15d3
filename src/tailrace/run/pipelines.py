"""The pipelines as a process: the Spark application, the snapshot and backfill services beside it,
signals and the status file.
"""

from __future__ import annotations

import signal
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from tailrace.errors import ProcessError
from tailrace.run import status
from tailrace.run.lock import data_folder_lock

if TYPE_CHECKING:
    from types import FrameType

    from tailrace.backfill.service import BackfillService as Backfills
    from tailrace.config import Config
    from tailrace.pipeline.application import Application
    from tailrace.snapshot.service.service import SnapshotService as Snapshots

_POLL_S = 0.5
_STOP_S = 5.0


def run_pipelines(config: Config) -> None:
    """Run every pipeline until SIGTERM or SIGINT."""
    from tailrace.pipeline.application import Application  # noqa: PLC0415 - Spark loads slowly

    stopping = threading.Event()
    events = structlog.get_logger()

    def on_signal(signum: int, _frame: FrameType | None) -> None:
        if not stopping.is_set():
            events.info("pipelines.stopping", signal=signal.Signals(signum).name)
            stopping.set()

    where = status.folder(config.data)
    work = _Work(config)
    with data_folder_lock(where, "pipelines"):
        reporter = status.Reporter(where, "pipelines", lambda: work.status)
        application = Application(config)
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, on_signal)
        work.start(application)
        events.info("pipelines.running", pipelines=sorted(config.pipelines))
        try:
            while not stopping.wait(_POLL_S):
                work.start_services()
                work.refresh("running")
                if application.lost is not None:
                    raise ProcessError(f"Spark has ended: {application.lost}")
        finally:
            work.stop()
            reporter.close()
    events.info("pipelines.stopped")


class _Work:
    """Everything that runs in this process, and its status."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.status = status.PipelinesStatus()
        self._application: Application | None = None
        self._snapshots: list[Snapshots] = []
        self._backfills: list[Backfills] = []
        self._services: list[Snapshots | Backfills] = []

    def start(self, application: Application) -> None:
        """Start the pipelines, then the services."""
        self._application = application
        application.start()
        self.start_services()
        self.status = replace(self.status, state="running")

    def start_services(self) -> None:
        """Start the services, unless they run: after capture has created the log, which they read.

        Pipelines wait for the log by themselves.
        """
        from tailrace.backfill.service import services as backfills  # noqa: PLC0415 - psycopg
        from tailrace.postgres.bootstrap import log_exists  # noqa: PLC0415
        from tailrace.snapshot.service.service import services as snapshots  # noqa: PLC0415

        assert self._application is not None
        if self._services or not log_exists(self._config.log.path):
            return
        self._snapshots = snapshots(self._config, self._application.publish)
        self._backfills = backfills(self._config)
        self._services = [*self._snapshots, *self._backfills]
        for service in self._services:
            service.start()

    def refresh(self, state: str) -> None:
        """Read the present figures."""
        assert self._application is not None
        self.status = status.PipelinesStatus(
            state=state,
            pipelines=self._application.progress(),
            snapshots=tuple(each for part in self._snapshots for each in part.progress()),
            backfills=tuple(each for part in self._backfills for each in part.progress()),
        )

    def stop(self) -> None:
        """Stop the services and the pipelines."""
        assert self._application is not None
        for service in self._services:
            service.stop()
        self._application.stop()
        for service in self._services:
            service.join(_STOP_S)
        self.refresh("stopped")
