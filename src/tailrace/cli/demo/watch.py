"""The demo's main loop: receives changes, checks the processes, and feeds the view."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tailrace.cli.demo.tally import of_table
from tailrace.cli.demo.view import Picture
from tailrace.errors import ProcessError
from tailrace.testing.shop import CLOSED

if TYPE_CHECKING:
    import threading

    from tailrace.cli.demo.environment import DemoEnvironment
    from tailrace.cli.demo.meter import Meter
    from tailrace.cli.demo.subscriber import Subscriber
    from tailrace.cli.demo.tally import Counts
    from tailrace.cli.demo.view import View
    from tailrace.observe.figures import ProcessFigures

_POLL_S = 0.1
_CHECK_S = 0.5
_TIMEOUT_S = 120.0


class Watch:
    """Receives changes up to the shop's last message, and shows them."""

    def __init__(
        self, environment: DemoEnvironment, subscriber: Subscriber, meter: Meter, view: View
    ) -> None:
        self.meter = meter
        self._environment = environment
        self._subscriber = subscriber
        self._view = view
        self._places = tuple(environment.places())
        self._processes: tuple[str, ...] = ()
        self._pending = 0
        self._mirror = ""
        self._checked_at = 0.0
        self._closed = False

    def until_first_change(self, stop: threading.Event) -> None:
        """Until the first change is shown. Its latency is not counted: it waited for Spark."""
        while not self.meter.received and not stop.wait(_POLL_S):
            self._step()
        self.meter.begin(time.time())

    def until_stopped(self, stop: threading.Event, seconds: float | None) -> None:
        """Until `stop` is set, or for `seconds`."""
        end = None if seconds is None else time.monotonic() + seconds
        while not stop.wait(_POLL_S) and (end is None or time.monotonic() < end):
            self._step()

    def until_last_change(self) -> None:
        """Until the shop's last message arrives; ProcessError if nothing arrives for long."""
        received, deadline = -1, 0.0
        while not self._closed:
            if self.meter.received > received:
                received, deadline = self.meter.received, time.monotonic() + _TIMEOUT_S
            if time.monotonic() > deadline:
                raise ProcessError(
                    f"no change arrived for {_TIMEOUT_S:.0f} s, and the last one is missing"
                )
            time.sleep(_POLL_S)
            self._step("the traffic has ended; waiting for the last changes")
        self._checked_at = 0.0
        self._step("all changes have arrived")

    def until_copied(self) -> int | None:
        """Until the local copy equals its table; the number of rows, None after a timeout."""
        deadline = time.monotonic() + _TIMEOUT_S
        while (rows := self._environment.original()) != self._environment.copied():
            if time.monotonic() > deadline:
                return None
            time.sleep(_POLL_S)
            self._step("all changes have arrived; waiting for the mirror")
        return len(rows)

    def until_posted(self, committed: Counts) -> bool:
        """Until the webhooks were accepted; False after a timeout."""
        webhooks, deadline = self._environment.webhooks, time.monotonic() + _TIMEOUT_S
        expected = of_table(committed, self._environment.posted)
        while webhooks.counts != expected:
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
            self._step("all changes have arrived; waiting for the webhooks")
        return True

    def _step(self, note: str = "") -> None:
        for arrival in self._subscriber.take():
            if not self._closed:
                self.meter.note(arrival)
                self._closed = arrival.table == CLOSED
        self._check()
        if self.meter.received:
            self._show(note)

    def _check(self) -> None:
        """Read the processes and PostgreSQL, twice per second at most."""
        if time.monotonic() < self._checked_at + _CHECK_S:
            return
        figures = self._environment.figures()
        self._environment.check(figures)
        self._processes = tuple(_process_text(process) for process in figures.processes)
        self._pending = max(self._environment.tally.total() - self.meter.rows, 0)
        self._mirror = self._mirror_text()
        self._checked_at = time.monotonic()

    def _mirror_text(self) -> str:
        table, copied = self._environment.mirrored, self._environment.copied()
        if copied is None:
            return f"{table}: loading"
        rows = len(self._environment.original())
        return f"{table}: {len(copied):,} rows in SQLite, {rows:,} in PostgreSQL"

    def _show(self, note: str) -> None:
        now = time.time()
        picture = Picture(
            places=self._places,
            processes=self._processes,
            received=self.meter.received,
            pending=self._pending,
            per_second=self.meter.per_second(now),
            history=self.meter.history(now),
            latency=self.meter.latency(now),
            recent=tuple(self.meter.recent),
            keys=self._environment.keys,
            mirror=self._mirror,
            webhooks=self._environment.webhooks.summary(),
            note=note,
        )
        self._view.show(picture)


def _process_text(process: ProcessFigures) -> str:
    restarts = f", restarts {process.restarts}" if process.restarts else ""
    return f"{process.name} {process.state} (pid {process.pid or '—'}{restarts})"
