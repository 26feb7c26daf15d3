"""`tailrace run`: starts the processes of a config, restarts them, and stops them in order.

The rules:

1. Every process may die and restart without loss: the log is durable before changes are
   acknowledged, and pipelines have checkpoints.
2. A process that ends is restarted at once, the next time after 1 s, then 2 s, up to 30 s. After a
   minute without an exit it is restarted at once again.
3. An exit code that a restart cannot fix (GAP, SLOT_LOST, BAD_CONFIG …) is final: the process stays
   down and `/status` shows it. The others continue: pipelines still deliver what the log holds.
4. SIGTERM or SIGINT stops the processes one after another, capture first. A second signal kills
   those that still run.
5. When the supervisor dies, its processes end. A new supervisor waits until they have: two captures
   or two pipelines on one folder would disturb each other.
6. SIGHUP reloads the settings: pipelines and HTTP endpoints restart with the new ones, also those
   in a final state. An order (`run.reloads`) restarts those that read what has changed, and those
   in a final state. Invalid settings, and changes that need a restart of all, change nothing.
   Capture is not restarted.
7. When every worker is in a final state, the supervisor ends with the exit code of the worker that
   failed first. Pipelines do not count while there is no log: only capture creates it.
8. When another machine has taken over (capture is FENCED), all processes are stopped: its pipelines
   deliver now.
"""

from __future__ import annotations

import signal
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import structlog

from tailrace.errors import TailraceError
from tailrace.run import status
from tailrace.run.busy import BusyMeter
from tailrace.run.child import Child, State, SubprocessLauncher, restart_backoff
from tailrace.run.loaded import loaded_file
from tailrace.run.lock import data_folder_lock
from tailrace.run.summary import summary

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path
    from types import FrameType

    from tailrace.backoff import Backoff
    from tailrace.config.pinned import Pin
    from tailrace.run.child import Launcher, Spec

_TICK_S = 0.05


class Settings(Protocol):
    """The settings of the processes, which can be loaded again."""

    @property
    def pin(self) -> Pin | None:
        """What processes read that are started now; None: the file, as it is then."""

    def ordered(self) -> bool:
        """Whether an operator has ordered that."""

    def reload(self) -> Collection[str]:
        """Load them; the processes that read what has changed. Raises TailraceError: no change."""


class UnknownSettings:
    """Settings that only the processes know: each reads them when it starts."""

    pin: Pin | None = None

    def ordered(self) -> bool:
        """Never."""
        return False

    def reload(self) -> Collection[str]:
        """None is known to have changed."""
        return ()


class Supervisor:
    """Runs children until it is stopped, or until no worker can continue.

    A state machine without a clock: call `tick` until it returns False, then read `exit_code`.
    """

    def __init__(
        self,
        specs: Sequence[Spec],
        where: Path,
        launcher: Launcher,
        *,
        backoff: Callable[[], Backoff] = restart_backoff,
        settings: Settings | None = None,
        started_at: float = 0.0,
    ) -> None:
        self.children = [Child(spec, launcher, backoff()) for spec in specs]
        self._settings = settings or UnknownSettings()
        self._where = where
        self._started_at = started_at
        self._signals = 0
        self._stopped_by = ""
        self._reload_requested = False
        self._reported_at = float("-inf")
        self._busy = BusyMeter()
        self._first_failure: int | None = None
        self._to_stop: list[Child] | None = None
        self._stop_deadline: float | None = None

    def stop(self, by: str = "") -> None:
        """Request a stop; `by` names the signal. Safe in a signal handler: it only counts."""
        self._signals += 1
        self._stopped_by = self._stopped_by or by

    def reload(self) -> None:
        """Request that the settings are reloaded. Safe in a signal handler."""
        self._reload_requested = True

    @property
    def exit_code(self) -> int:
        """The exit code of the supervisor: 0 after a signal."""
        return 0 if self._signals else self._first_failure or 1

    def tick(self, now: float) -> bool:
        """Do what is due; False when every child has ended."""
        ends = self._signals or self._no_worker_left() or self._ended_for_all()
        if self._to_stop is None and ends:
            self._to_stop = list(self.children)
        if self._to_stop is not None:
            return self._tick_stop(self._to_stop, now)
        self._reload_if_requested(now)
        for child in self.children:
            child.tick(now)
        self._report("running", now)
        return True

    def _tick_stop(self, to_stop: list[Child], now: float) -> bool:
        """Stop one child after another: SIGTERM, wait, and SIGKILL after its limit."""
        while to_stop:
            child = to_stop[0]
            if self._stop_deadline is None:
                child.terminate()
                self._stop_deadline = now + child.spec.stop_s
            if not child.stopped(force=self._signals > 1 or now > self._stop_deadline):
                self._report("stopping", now)
                return True
            to_stop.pop(0)
            self._stop_deadline = None
        self._report("stopped", now, at_once=True)
        return False

    def _reload_if_requested(self, now: float) -> None:
        by_signal, self._reload_requested = self._reload_requested, False
        reports = now - self._reported_at >= status.WRITE_EVERY_S
        if not by_signal and not (reports and self._settings.ordered()):
            return
        events = structlog.get_logger()
        try:
            changed = self._settings.reload()
        except TailraceError as error:
            events.error("run.reload_refused", reason=str(error), hint=error.hint)
            return
        reloaded = [
            child
            for child in self.children
            if child.spec.reloads
            and (by_signal or child.spec.name in changed or child.state is State.FAILED)
        ]
        events.info("run.reloading", processes=[child.spec.name for child in reloaded])
        for child in reloaded:
            child.reload(now)

    def _no_worker_left(self) -> bool:
        """Whether every worker is in a final state, or has nothing to do without one that is."""
        workers = [child for child in self.children if child.spec.worker]
        failed = [child for child in workers if child.state is State.FAILED]
        if failed and self._first_failure is None:
            self._first_failure = failed[0].exit_code
        return bool(failed) and all(
            child.state is State.FAILED or child.spec.idle() for child in workers
        )

    def _ended_for_all(self) -> bool:
        """Whether a process has ended in a state that concerns them all."""
        for child in self.children:
            if child.state is State.FAILED and child.exit_code in child.spec.ends_all:
                self._first_failure = child.exit_code
                return True
        return False

    def _report(self, state: str, now: float, *, at_once: bool = False) -> None:
        if not at_once and now - self._reported_at < status.WRITE_EVERY_S:
            return
        self._reported_at = now
        figures = {child.spec.name: child.figures() for child in self.children}
        self._busy.look({name: each.pid for name, each in figures.items()}, now)
        report = status.RunStatus(
            state=state,
            started_at=self._started_at,
            stopped_by=self._stopped_by,
            processes={
                name: replace(each, cpu_s=self._busy.cpu_s(name), busy=self._busy.busy(name))
                for name, each in figures.items()
            },
        )
        status.write(self._where, "run", report)


def supervise(
    specs: Sequence[Spec],
    data: Path,
    *,
    backoff: Callable[[], Backoff] = restart_backoff,
    settings: Settings | None = None,
    begin: Callable[[], object] = lambda: None,
) -> int:
    """Run processes on a data folder until SIGTERM or SIGINT; the exit code.

    `begin` is called when no other supervisor uses the data folder.
    """
    where = status.folder(data)
    known = settings or UnknownSettings()
    with data_folder_lock(where) as lock:
        supervisor = Supervisor(
            specs, where, SubprocessLauncher((lock,), lambda: known.pin),
            backoff=backoff, settings=known, started_at=time.time(),
        )  # fmt: skip
        _handle_signals(supervisor)
        status.clear(where)
        if settings is None:
            loaded_file(data).remove()
        begin()
        try:
            _run(supervisor)
        except BaseException:
            supervisor.stop()
            _run(supervisor)
            raise
        exit_code = supervisor.exit_code
        structlog.get_logger().info(
            "run.summary", **summary(where, exit_code=exit_code, now=time.time())
        )
        return exit_code


def _run(supervisor: Supervisor) -> None:
    while supervisor.tick(time.monotonic()):
        time.sleep(_TICK_S)


def _handle_signals(supervisor: Supervisor) -> None:
    def on_signal(signum: int, _frame: FrameType | None) -> None:
        name = signal.Signals(signum).name
        supervisor.stop(name)
        structlog.get_logger().info("run.stopping", signal=name)

    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, on_signal)
    if sys.stdin is None or not sys.stdin.isatty():
        # On a terminal, SIGHUP means that the terminal is gone, and ends the process as usual.
        signal.signal(signal.SIGHUP, lambda _signum, _frame: supervisor.reload())
