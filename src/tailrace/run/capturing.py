"""Capture as a process: signals, progress lines, the status file, and a limit of five seconds for
a stop.

The capture loop itself is `tailrace.capture.capture`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from tailrace.capture.capture import Capture
from tailrace.errors import TailraceError, UnexpectedError
from tailrace.run import status

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import FrameType

    from tailrace.config import Config
    from tailrace.observe.figure import Recorder
    from tailrace.observe.figures import CaptureFigures
    from tailrace.position import Lsn

_STOP_LIMIT_S = 4.5
_PROGRESS_S = 10.0


def run_capture(config: Config, *, until: Lsn | None = None) -> CaptureFigures:
    """Capture until SIGTERM or SIGINT, or until everything up to `until` is durable."""
    stop = threading.Event()
    events = structlog.get_logger()

    def on_signal(signum: int, _frame: FrameType | None) -> None:
        if not stop.is_set():
            stop.set()
            _limit_stop_time()
            events.info("capture.stopping", signal=signal.Signals(signum).name)

    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, on_signal)
    capture = Capture(config, stopping=stop.is_set)
    counts = capture.counts
    threading.Thread(target=_log_progress, args=(counts, stop), daemon=True).start()
    with _status_file(counts, status.folder(config.data), stop):
        capture.run(until=until)
    figures = counts.figures
    events.info("capture.stopped", changes=figures.changes, transactions=figures.transactions)
    return figures


@contextlib.contextmanager
def _status_file(
    counts: Recorder[CaptureFigures], where: Path, stop: threading.Event
) -> Iterator[None]:
    """Write the status file while capture runs. Its last content says how capture ended."""
    final = ""

    def current() -> CaptureFigures:
        figures = counts.figures
        return replace(figures, state=final or _state(figures, stop))

    reporter = status.Reporter(where, "capture", current)
    try:
        yield
        final = "stopped"
    except TailraceError as error:
        final = error.code
        raise
    finally:
        final = final or UnexpectedError.code
        reporter.close()


def _state(figures: CaptureFigures, stop: threading.Event) -> str:
    if stop.is_set():
        return "stopping"
    if figures.connected:
        return "streaming"
    return "reconnecting" if figures.sessions else "starting"


def _limit_stop_time() -> None:
    """End the process if a server or a disk hangs: everything acknowledged is durable already."""

    def leave() -> None:
        structlog.get_logger().error("capture.stop_timed_out", after_s=_STOP_LIMIT_S)
        os._exit(1)

    watchdog = threading.Timer(_STOP_LIMIT_S, leave)
    watchdog.daemon = True
    watchdog.start()


def _log_progress(counts: Recorder[CaptureFigures], stop: threading.Event) -> None:
    """Log a line for every ten seconds in which changes arrived."""
    before, since = counts.figures, time.monotonic()
    while not stop.wait(_PROGRESS_S):
        figures, now = counts.figures, time.monotonic()
        if figures.changes != before.changes:
            structlog.get_logger().info(
                "capture.progress",
                changes=figures.changes,
                changes_per_s=round((figures.changes - before.changes) / (now - since)),
                transactions=figures.transactions,
                bytes=figures.bytes,
            )
        before, since = figures, now
