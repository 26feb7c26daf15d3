"""Capture as a process: signals, the report, the status file, and the promise to be gone within
five seconds.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from typing import TYPE_CHECKING

import structlog

from tailrace.capture.capture import Capture
from tailrace.errors import TailraceError
from tailrace.run import status

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import FrameType

    from tailrace.capture.session import Counts
    from tailrace.config import Config
    from tailrace.position import Lsn

_PATIENCE_S = 4.5
_REPORT_S = 10.0


def run_capture(config: Config, *, until: Lsn | None = None) -> Counts:
    """Capture until SIGTERM or SIGINT, or until everything up to `until` is durable."""
    stop = threading.Event()
    events = structlog.get_logger()

    def on_signal(signum: int, _frame: FrameType | None) -> None:
        if not stop.is_set():
            stop.set()
            _leave_in_time()
            events.info("capture.stopping", signal=signal.Signals(signum).name)

    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, on_signal)
    capture = Capture(config, stopping=stop.is_set)
    threading.Thread(target=_report, args=(capture.counts, stop), daemon=True).start()
    counts = capture.counts
    with _reported(counts, status.folder(config.data), stop):
        capture.run(until=until)
    events.info("capture.stopped", changes=counts.changes, transactions=counts.transactions)
    return counts


@contextlib.contextmanager
def _reported(counts: Counts, where: Path, stop: threading.Event) -> Iterator[None]:
    """Keep the status file while capture runs; its last content says how that ended."""
    end = ""

    def fields() -> dict[str, object]:
        return {"state": end or _state(counts, stop), **_figures(counts)}

    reporter = status.Reporter(where, "capture", fields)
    try:
        yield
        end = "stopped"
    except TailraceError as error:
        end = error.code
        raise
    finally:
        end = end or TailraceError.code
        reporter.close()


def _state(counts: Counts, stop: threading.Event) -> str:
    if stop.is_set():
        return "stopping"
    if counts.streaming:
        return "streaming"
    return "reconnecting" if counts.sessions else "starting"


def _figures(counts: Counts) -> dict[str, object]:
    return {
        "messages": counts.messages,
        "changes": counts.changes,
        "transactions": counts.transactions,
        "bytes": counts.bytes,
        "end_lsn": str(counts.acknowledged),
        "reconnects": max(counts.sessions - 1, 0),
    }


def _leave_in_time() -> None:
    """Whatever is durable is safe already, so a server or a disk that hangs is left behind."""

    def leave() -> None:
        structlog.get_logger().error("capture.abandoned", after_s=_PATIENCE_S)
        os._exit(1)

    watchdog = threading.Timer(_PATIENCE_S, leave)
    watchdog.daemon = True
    watchdog.start()


def _report(counts: Counts, stop: threading.Event) -> None:
    """A line every ten seconds in which something happened."""
    seen, since = counts.changes, time.monotonic()
    while not stop.wait(_REPORT_S):
        now = time.monotonic()
        if counts.changes != seen:
            structlog.get_logger().info(
                "capture.report",
                changes=counts.changes,
                changes_per_s=round((counts.changes - seen) / (now - since)),
                transactions=counts.transactions,
                bytes=counts.bytes,
            )
        seen, since = counts.changes, now
