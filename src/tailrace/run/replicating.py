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
from tailrace.errors import LeadingError, LogFencedError, TailraceError, UnexpectedError
from tailrace.log import lease
from tailrace.log.store import LocalStore
from tailrace.log.term import term_of
from tailrace.postgres.connection import connect
from tailrace.postgres.slot_terms import check_not_taken_over, read_terms
from tailrace.replica.follower import Follower
from tailrace.replica.leader import Leader, check_protection
from tailrace.replica.takeover import take_over
from tailrace.replica.vigil import Vigil, see_slot
from tailrace.run import status

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import FrameType

    from tailrace.config import Config
    from tailrace.observe.replica import FollowingFigures

_ASK_S = 2.0


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
    """Follow a leader until SIGTERM or SIGINT. Raises LeadingError: this machine leads now."""
    settings = config.replication
    check_protection((settings.listen,), protected=settings.protected())
    stop = _stop_signal("replica")
    store = LocalStore(config.log.path, create=True)
    due = threading.Event()
    follower = Follower(
        store, settings, data=config.data, pipelines=config.pipelines,
        stopping=lambda: stop.is_set() or due.is_set(),
    )  # fmt: skip
    where = status.folder(config.data)
    private.create_folder(where)
    with _status_file(follower, where, stop):
        if settings.takeover == "auto":
            threading.Thread(
                target=_watch, args=(config, follower, stop, due), name="vigil", daemon=True
            ).start()
        while not stop.is_set():
            follower.run(host_and_port(settings.listen))
            if due.is_set() and not stop.is_set():
                _take_over(config, store)
                due.clear()


def check_leads(config: Config) -> None:
    """Raise LogFencedError if another machine leads; unless PostgreSQL cannot be asked.

    Before anything starts: pipelines would deliver from an older state beside those of the leader.
    """
    store = LocalStore(config.log.path)
    if lease.follows(store):
        raise LogFencedError(
            f"{store.folder} is a copy of another machine's log",
            hint="Start `tailrace follow`, or take over: tailrace takeover",
        )
    base, timeout_s = config.source.slot, config.capture.connect_timeout_s
    dsn = config.source.dsn.get_secret_value()
    try:
        with connect(dsn, application_name="tailrace run", connect_timeout_s=timeout_s) as sql:
            terms = read_terms(sql, base)
    except TailraceError as error:
        structlog.get_logger().warning("run.terms_unknown", code=error.code, reason=str(error))
        return
    check_not_taken_over(terms, base=base, term=term_of(lease.last_epoch(store)))


def _watch(config: Config, follower: Follower, stop: threading.Event, due: threading.Event) -> None:
    """Set `due` when this machine should take over."""
    after_s = config.replication.takeover_after_s
    vigil = Vigil(after_s)
    while not stop.wait(min(after_s / 10, _ASK_S)):
        if due.is_set():
            vigil.reset()
            continue
        silent_s = time.monotonic() - follower.received_at
        slot = see_slot(config) if vigil.asks(silent_s) else None
        if vigil.note(time.monotonic(), silent_s=silent_s, slot=slot):
            due.set()


def _take_over(config: Config, store: LocalStore) -> None:
    """Try it. Raises LeadingError if it has succeeded; otherwise this machine follows again."""
    events = structlog.get_logger()
    events.warning("replica.taking_over")
    try:
        outcome = take_over(config, store)
    except TailraceError as error:
        events.warning(
            "replica.not_taken_over", code=error.code, reason=str(error), hint=error.hint
        )
        return
    events.warning("replica.taken_over", term=outcome.term, slot=outcome.slot)
    for warning in outcome.warnings:
        events.warning("replica.takeover_unfinished", what=warning)
    raise LeadingError(f"this machine has taken over, with slot {outcome.slot}")


@contextlib.contextmanager
def _status_file(follower: Follower, where: Path, stop: threading.Event) -> Iterator[None]:
    final = ""

    def current() -> FollowingFigures:
        silent_s = round(time.monotonic() - follower.received_at, 1)
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
