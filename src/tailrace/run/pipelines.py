"""The pipelines as a process: Spark, its signals and its status file."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING

import structlog

from tailrace.errors import ProcessError
from tailrace.run import status

if TYPE_CHECKING:
    from types import FrameType

    from tailrace.backfill.service import BackfillService as Backfills
    from tailrace.config import Config
    from tailrace.snapshot.service.service import SnapshotService as Snapshots

_POLL_S = 0.5
_STOP_S = 5.0


def run_pipelines(config: Config) -> None:
    """Run every pipeline until SIGTERM or SIGINT."""
    stopping = threading.Event()
    events = structlog.get_logger()

    def on_signal(signum: int, _frame: FrameType | None) -> None:
        if not stopping.is_set():
            events.info("pipelines.stopping", signal=signal.Signals(signum).name)
            stopping.set()

    from tailrace.backfill.service import services as backfills  # noqa: PLC0415 - psycopg
    from tailrace.pipeline.application import Application  # noqa: PLC0415 - Spark loads slowly
    from tailrace.snapshot.service.service import services as snapshots  # noqa: PLC0415

    state: dict[str, object] = {"state": "starting", "pipelines": {}}
    where = status.folder(config.data)
    where.mkdir(parents=True, exist_ok=True)
    reporter = status.Reporter(where, "pipelines", lambda: state)
    application = Application(config)
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, on_signal)
    application.start()
    making = snapshots(config, application.publish)
    filling = backfills(config)
    services: list[Backfills | Snapshots] = [*making, *filling]
    for service in services:
        service.start()
    events.info("pipelines.running", pipelines=sorted(config.pipelines))
    state["state"] = "running"
    try:
        while not stopping.wait(_POLL_S):
            state["pipelines"] = application.progress()
            state["snapshots"] = [each for service in making for each in service.progress()]
            state["backfills"] = [each for service in filling for each in service.progress()]
            if application.lost is not None:
                raise ProcessError(f"Spark is gone: {application.lost}")
    finally:
        for service in services:
            service.stop()
        application.stop()
        for service in services:
            service.join(_STOP_S)
        state["state"] = "stopped"
        state["pipelines"] = application.progress()
        reporter.close()
    events.info("pipelines.stopped")
