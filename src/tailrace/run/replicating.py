"""Leader and follower as processes: signals, the status file, and a limit for a stop."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from tailrace import private
from tailrace.config.replication import host_and_port
from tailrace.errors import TailraceError, UnexpectedError
from tailrace.log.store import LocalStore
from tailrace.replica.follower import Follower
from tailrace.replica.leader import Leader, check_protection
from tailrace.run import status

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import FrameType

    from tailrace.config import Config
    from tailrace.observe.replica import FollowingFigures


def run_leader(config: Config) -> None:
    """Send the log to the followers until SIGTERM or SIGINT."""
    stop = _stop_signal("replica")
    leader = Leader(config, LocalStore(config.log.path), stopping=stop.is_set)
    reporter = status.Reporter(status.folder(config.data), "replicate", leader.figures)
    try:
        leader.run()
    finally:
        reporter.close()


def run_follower(config: Config) -> None:
    """Follow a leader until SIGTERM or SIGINT."""
    settings = config.replication
    check_protection((settings.listen,), protected=settings.protected())
    stop = _stop_signal("replica")
    store = LocalStore(config.log.path, create=True)
    follower = Follower(store, settings, stopping=stop.is_set)
    where = status.folder(config.data)
    private.create_folder(where)
    with _status_file(follower, where, stop):
        follower.run(host_and_port(settings.listen))


@contextlib.contextmanager
def _status_file(follower: Follower, where: Path, stop: threading.Event) -> Iterator[None]:
    final = ""

    def current() -> FollowingFigures:
        silent_s = round(time.monotonic() - follower.heard_at, 1)
        figures = replace(follower.counts.figures, last_heard_s=silent_s)
        state = final or ("stopping" if stop.is_set() else figures.state)
        return replace(figures, state=state)

    reporter = status.Reporter(where, "follow", current)
    try:
        yield
        final = "stopped"
    except TailraceError as error:
        final = error.code
        raise
    finally:
        final = final or UnexpectedError.code
        reporter.close()


def _stop_signal(what: str) -> threading.Event:
    stop = threading.Event()

    def on_signal(signum: int, _frame: FrameType | None) -> None:
        if not stop.is_set():
            stop.set()
            structlog.get_logger().info(f"{what}.stopping", signal=signal.Signals(signum).name)

    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, on_signal)
    return stop
