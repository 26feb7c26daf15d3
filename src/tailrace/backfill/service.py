"""Runs the backfills of one pipeline, one after another, in a thread."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

import structlog

from tailrace.backfill import queue
from tailrace.backfill.filler import Filler
from tailrace.backfill.order import FINISHED, Order, Record
from tailrace.backoff import Backoff
from tailrace.errors import DiskFullError, TailraceError, UnexpectedError
from tailrace.postgres.joining import JoinedTables

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.config import Config
    from tailrace.observe.copies import BackfillFigures

_POLL_S = 0.25
_FIRST_RETRY_S, _MAX_RETRY_S = 1.0, 20.0
_MAX_LISTED = 20


class BackfillService:
    """Runs the orders of a pipeline, the oldest first.

    `clock` is monotonic, `now` is Unix time.
    """

    def __init__(
        self,
        config: Config,
        name: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._config = config
        self._name = name
        self._clock = clock
        self._now = now
        self._filler = Filler(config, name, self._wait, clock=clock, now=now)
        self._folder = self._filler.folder
        dsn = config.source.dsn.get_secret_value()
        self._joined = JoinedTables(dsn, config.source.publication, self._folder)
        self._stopping = threading.Event()
        self._current = ""
        self._checked_s = float("-inf")
        """When the desired state of the current backfill was last read."""
        self._may_run = True
        self._records: dict[str, Record] = {}
        self._events = structlog.get_logger().bind(pipeline=name)
        self._thread = threading.Thread(target=self._work, name=f"backfills {name}", daemon=True)

    def start(self) -> None:
        """Resume the backfills of the last run, and submit those of the settings."""
        self._records = Record.load(self._folder)
        queue.submit_configured(self._config, self._name)
        self._thread.start()

    def stop(self) -> None:
        """Stop after the current page."""
        self._stopping.set()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def progress(self) -> list[BackfillFigures]:
        """The progress of the last backfills, the latest last."""
        now = self._now()
        records = list(self._records.values())[-_MAX_LISTED:]
        return [record.progress(self._name, now) for record in records]

    def _wait(self, seconds: float) -> bool:
        """Sleep; False if the service stops, or the current backfill is paused or cancelled."""
        until_s = self._clock() + seconds
        while True:
            now_s = self._clock()
            if now_s - self._checked_s >= _POLL_S:
                self._checked_s = now_s
                states = {order.id: order.desired_state for order in Order.load(self._folder)}
                self._may_run = states.get(self._current, "cancel") == "run"
            if not self._may_run or self._stopping.wait(min(max(until_s - now_s, 0), _POLL_S)):
                return False
            if self._clock() >= until_s:
                return True

    def _work(self) -> None:
        for record in self._records.values():
            if record.state not in FINISHED:
                self._adopt_pages(record)
        while not self._stopping.is_set():
            try:
                order = self._next()
            except OSError as error:
                self._events.warning("backfill.orders_unreadable", reason=str(error))
                order = None
            if order is None:
                self._tidy()
                self._stopping.wait(_POLL_S)
                continue
            self._current, self._checked_s, self._may_run = order.id, float("-inf"), True
            record = self._records[order.id]
            try:
                self._fill(order, record)
            except Exception as error:
                # A bug ends this backfill, not the ones after it.
                self._events.exception("backfill.unexpected_error", id=order.id)
                self._finish(record, "failed", UnexpectedError.wrap(error))

    def _adopt_pages(self, record: Record) -> None:
        """Add pages of the last run that the record lacks, also if it will not run now."""
        try:
            self._filler.adopt_pages(record)
        except Exception as error:
            # `run` reports it, if the backfill runs again.
            self._events.warning("backfill.pages_unreadable", id=record.id, reason=str(error))

    def _tidy(self) -> None:
        try:
            self._filler.tidy()
        except (TailraceError, OSError) as error:
            self._events.warning("backfill.spool_not_tidied", reason=str(error))

    def _next(self) -> Order | None:
        """The oldest order to run. Orders that are paused or cancelled get their new state."""
        oldest = None
        for order in Order.load(self._folder):
            record = self._records.setdefault(order.id, Record(id=order.id, table=order.table))
            if record.state in FINISHED:
                continue
            match order.desired_state:
                case "cancel":
                    self._finish(record, "cancelled")
                case "pause":
                    self._pause(record)
                case "run":
                    oldest = oldest or order
        return oldest

    def _pause(self, record: Record) -> None:
        if record.state != "paused":
            record.state = "paused"
            self._save(record)
            self._events.info("backfill.paused", id=record.id)

    def _save(self, record: Record) -> None:
        """Save the state. On a full disk the last one stays: a restart continues from there."""
        with contextlib.suppress(DiskFullError):
            record.save(self._folder)

    def _fill(self, order: Order, record: Record) -> None:
        """Run a backfill until it finishes or stops; transient errors are retried."""
        backoff = Backoff(first_s=_FIRST_RETRY_S, max_s=_MAX_RETRY_S, clock=self._clock)
        while True:
            number = record.number
            try:
                if not self._joined.wait_for_writers(order.table, self._stopping):
                    return
                if self._filler.run(order, record):
                    self._finish(record, "complete")
                return
            except TailraceError as error:
                if not error.transient:
                    self._finish(record, "failed", error)
                    return
                if record.number > number:
                    backoff.reset()
                delay_s = backoff.next_s()
                record.state, record.error = "retrying", str(error)
                self._save(record)
                self._events.warning(
                    "backfill.retrying", id=order.id, code=error.code, reason=str(error),
                    retry_in_s=delay_s,
                )  # fmt: skip
                if not self._wait(delay_s):
                    return

    def _finish(self, record: Record, state: str, error: TailraceError | None = None) -> None:
        record.state, record.ended_at = state, self._now()
        record.error = "" if error is None else str(error)
        self._save(record)
        events = self._events.bind(
            id=record.id, table=str(record.table), rows=record.delivered,
            seconds=round(record.ended_at - (record.begun_at or record.ended_at), 1),
        )  # fmt: skip
        if error is None:
            events.info(f"backfill.{state}")
        else:
            events.error(f"backfill.{state}", code=error.code, reason=str(error), hint=error.hint)


def services(config: Config) -> list[BackfillService]:
    """One service per pipeline."""
    return [BackfillService(config, name) for name in config.pipelines]
