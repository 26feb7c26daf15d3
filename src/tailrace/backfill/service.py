"""The backfills of one pipeline, one after another."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import structlog

from tailrace.backfill import queue as desk
from tailrace.backfill.filler import Filler
from tailrace.backfill.order import OVER, Order, Record
from tailrace.errors import TailraceError
from tailrace.postgres.joining import Joining

if TYPE_CHECKING:
    from tailrace.config import Config
    from tailrace.observe.figures import BackfillFigures

_LOOK_S = 0.25
_BACK_OFF_S = (1.0, 2.0, 5.0, 10.0, 20.0)


class Service:
    """Works off the orders of a pipeline, the oldest first."""

    def __init__(self, config: Config, name: str) -> None:
        self._config = config
        self._name = name
        self._filler = Filler(config, name, self._waits)
        self._folder = self._filler.folder
        dsn = config.source.dsn.get_secret_value()
        self._joining = Joining(dsn, config.source.publication, self._folder)
        self._stopping = threading.Event()
        self._current = ""
        self._looked_s = 0.0
        self._wished = True
        self._records: dict[str, Record] = {}
        self._events = structlog.get_logger().bind(pipeline=name)
        self._thread = threading.Thread(target=self._work, name=f"backfills {name}", daemon=True)

    def start(self) -> None:
        """Go on with what a crash has left, and begin what the settings ask for."""
        self._records = Record.load(self._folder)
        desk.place_configured(self._config, self._name)
        self._thread.start()

    def stop(self) -> None:
        """Stop after the page that is on its way."""
        self._stopping.set()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def progress(self) -> list[BackfillFigures]:
        """The backfills, the youngest last."""
        return [record.progress(self._name) for record in list(self._records.values())[-20:]]

    def _waits(self, seconds: float) -> bool:
        """Sleep; False if we are to stop, or the backfill at hand is."""
        until = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            if now - self._looked_s >= _LOOK_S:
                self._looked_s = now
                wishes = {order.id: order.wish for order in Order.load(self._folder)}
                self._wished = wishes.get(self._current, "cancel") == "run"
            if not self._wished or self._stopping.wait(min(max(until - now, 0), _LOOK_S)):
                return False
            if time.monotonic() >= until:
                return True

    def _work(self) -> None:
        while not self._stopping.is_set():
            try:
                order = self._next()
            except OSError as error:
                self._events.warning("backfill.unreadable", reason=str(error))
                order = None
            if order is None:
                self._stopping.wait(_LOOK_S)
                continue
            self._current, self._looked_s, self._wished = order.id, 0.0, True
            try:
                self._fill(order, self._records[order.id])
            except Exception as error:
                # A fault of our own ends this backfill, not the ones that come after it.
                self._events.exception("backfill.broken", id=order.id)
                self._over(self._records[order.id], "failed", f"{type(error).__name__}: {error}")

    def _next(self) -> Order | None:
        """The oldest order that is to be worked on; takes note of what is wished for the others."""
        found = None
        for order in Order.load(self._folder):
            record = self._records.setdefault(order.id, Record(id=order.id, table=order.table))
            if record.state in OVER:
                continue
            if order.wish == "cancel":
                self._over(record, "cancelled")
            elif order.wish == "pause":
                if record.state != "paused":
                    record.state = "paused"
                    record.save(self._folder)
                    self._events.info("backfill.paused", id=order.id)
            else:
                found = found or order
        return found

    def _fill(self, order: Order, record: Record) -> None:
        failures = 0
        while True:
            done = record.number
            try:
                if not self._joining.wait(order.table, self._stopping):
                    return
                if self._filler.run(order, record):
                    self._over(record, "complete")
                return
            except TailraceError as error:
                if not error.transient:
                    self._over(record, "failed", str(error))
                    self._events.error(
                        "backfill.failed", id=order.id, code=error.code, reason=str(error),
                        hint=error.hint,
                    )  # fmt: skip
                    return
                failures = 0 if record.number > done else failures
                delay_s = _BACK_OFF_S[min(failures, len(_BACK_OFF_S) - 1)]
                failures += 1
                record.state, record.error = "retrying", str(error)
                record.save(self._folder)
                self._events.warning(
                    "backfill.retrying", id=order.id, code=error.code, reason=str(error),
                    again_in_s=delay_s,
                )  # fmt: skip
                if not self._waits(delay_s):
                    return

    def _over(self, record: Record, state: str, error: str = "") -> None:
        record.state, record.error, record.ended_at = state, error, time.time()
        record.save(self._folder)
        self._events.info(
            f"backfill.{state}", id=record.id, table=str(record.table), rows=record.delivered,
            seconds=round(record.ended_at - (record.begun_at or record.ended_at), 1),
        )  # fmt: skip


def services(config: Config) -> list[Service]:
    """One for each pipeline."""
    return [Service(config, name) for name in config.pipelines]
