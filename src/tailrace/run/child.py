"""One supervised process: when it is started, restarted and stopped.

A state machine without a clock: `tick(now)` is called many times per second. `Launcher` stands for
the operating system, so the rules can be tested without processes.

    WAITING ───due───▶ RUNNING ──exit, final code──▶ FAILED
       ▲                │  ▲
       │                │  └──delay over──┐
       └──reload────────┤                 │
                        └──exit──▶ BACKING_OFF          any ──stop──▶ STOPPED (FAILED stays)
"""

from __future__ import annotations

import enum
import math
import signal
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import structlog

from tailrace import process
from tailrace.backoff import Backoff
from tailrace.observe.figures import ProcessFigures
from tailrace.run.exit_codes import ERRORS, FINAL, exit_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tailrace.config.pinned import Pin

HEALTHY_S = 60.0
"""A process that ran this long is healthy: it is restarted at once again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """A process to supervise."""

    name: str
    command: tuple[str, ...]
    worker: bool = True
    """Whether it moves data. Without a worker left, the supervisor ends."""
    stop_s: float = 10.0
    """How long a stop may take before the process is killed."""
    reloads: bool = True
    """Whether it restarts when the settings are reloaded."""
    final: frozenset[int] = frozenset(FINAL)
    """Exit codes that a restart cannot fix."""
    ends_all: frozenset[int] = frozenset()
    """Exit codes after which the other processes have nothing to do either."""
    idle: Callable[[], bool] = lambda: False
    """Whether it has nothing to do while the other workers are down."""


class State(enum.Enum):
    """The state of a supervised process."""

    WAITING = "waiting"
    RUNNING = "running"
    BACKING_OFF = "backing-off"
    FAILED = "failed"
    STOPPED = "stopped"


class Running(Protocol):
    """A process that was started."""

    @property
    def pid(self) -> int:
        """Its process id."""

    def exit_code(self) -> int | None:
        """Its exit code, after it and all of its group have ended; None before."""

    def terminate(self) -> None:
        """Send SIGTERM."""

    def kill(self) -> None:
        """Kill it and all of its group."""


class Launcher(Protocol):
    """Starts processes."""

    def start(self, command: Sequence[str]) -> Running:
        """Start a command."""


def restart_backoff() -> Backoff:
    """0 s, 1 s, 2 s, 4 s … 30 s. Without jitter: no other supervisor shares the machine's log."""
    return Backoff(first_s=1.0, max_s=30.0, jitter=0.0, at_once=True)


class Child:
    """One supervised process and its history."""

    def __init__(self, spec: Spec, launcher: Launcher, backoff: Backoff | None = None) -> None:
        self.spec = spec
        self.state = State.WAITING
        self.restarts = 0
        self.exit_code: int | None = None
        self._launcher = launcher
        self._backoff = backoff or restart_backoff()
        self._running: Running | None = None
        self._killed = False
        self._reload_deadline = 0.0
        self._started_at = 0.0
        self._start_at = 0.0
        self._events = structlog.get_logger().bind(process=spec.name)

    @property
    def up(self) -> bool:
        """Whether the process exists."""
        return self._running is not None

    def tick(self, now: float) -> None:
        """Note an exit; start the process if it is due."""
        if self._running is not None:
            code = self._running.exit_code()
            if code is not None:
                self._note_exit(code, now)
            elif self._reload_deadline and now > self._reload_deadline:
                self._reload_deadline = math.inf
                self._kill(self._running)
        elif self.state is not State.FAILED and now >= self._start_at:
            self._start(now)

    def _start(self, now: float) -> None:
        try:
            self._running = self._launcher.start(self.spec.command)
        except (OSError, subprocess.SubprocessError) as error:
            # Too many processes, or no memory. The others run.
            self._events.error("process.not_started", reason=str(error))
            self._back_off(now)
            return
        self.restarts += self.exit_code is not None
        self._started_at = now
        self.state = State.RUNNING
        self._events.info("process.started", pid=self._running.pid, restarts=self.restarts)

    def _note_exit(self, code: int, now: float) -> None:
        self._running, self.exit_code = None, code
        if self._reload_deadline:
            self._reload_deadline = 0.0
            self.state, self._start_at = State.WAITING, now
            return
        if code in self.spec.final:
            self.state = State.FAILED
            hint = FINAL[code].default_hint if code in FINAL else ""
            self._events.error("process.failed", exit=exit_name(code), hint=hint)
            return
        if now - self._started_at >= HEALTHY_S:
            self._backoff.reset()
        delay_s = self._back_off(now)
        self._events.warning(
            "process.restarting", exit=exit_name(code), retry_in_s=round(delay_s, 1)
        )

    def _back_off(self, now: float) -> float:
        delay_s = self._backoff.next_s()
        self.state, self._start_at = State.BACKING_OFF, now + delay_s
        return delay_s

    def _kill(self, running: Running) -> None:
        self._events.error("process.killed", reason=f"no exit within {self.spec.stop_s:g} s")
        running.kill()

    def reload(self, now: float) -> None:
        """Restart the process, so that it reads the settings again. Revives a failed one."""
        if self._running is not None:
            # A reload that is under way keeps its limit.
            self._reload_deadline = self._reload_deadline or now + self.spec.stop_s
            self._running.terminate()
        elif self.state in {State.FAILED, State.BACKING_OFF}:
            self.state, self._start_at = State.WAITING, now

    def terminate(self) -> None:
        """Send SIGTERM, if the process runs."""
        if self._running is not None:
            self._running.terminate()

    def stopped(self, *, force: bool) -> bool:
        """Whether the process has ended; with `force` it is killed."""
        if self._running is not None:
            code = self._running.exit_code()
            if code is None:
                if force and not self._killed:
                    self._killed = True
                    self._kill(self._running)
                return False
            self._running, self.exit_code = None, code
            self._events.info("process.stopped", exit=exit_name(code))
        if self.state is not State.FAILED:
            self.state = State.STOPPED
        return True

    def figures(self) -> ProcessFigures:
        """The status figures of the process."""
        down = self.state in {State.FAILED, State.BACKING_OFF} and self.exit_code in ERRORS
        return ProcessFigures(
            name=self.spec.name,
            state=self.state.value,
            up=self.state is State.RUNNING,
            worker=self.spec.worker,
            pid=self._running.pid if self._running is not None else None,
            restarts=self.restarts,
            exit_code=self.exit_code,
            code=ERRORS[self.exit_code or 0].code if down else "",
        )


class SubprocessLauncher:
    """Starts real processes, which inherit these file descriptors, and the settings of `pin`."""

    def __init__(
        self, inherited: Sequence[int] = (), pin: Callable[[], Pin | None] = lambda: None
    ) -> None:
        self._inherited = inherited
        self._pin = pin

    def start(self, command: Sequence[str]) -> Running:
        """Start a command in a process group of its own."""
        if (pin := self._pin()) is None:
            return _Subprocess(process.start(command, share=self._inherited))
        share = (*self._inherited, *pin.share)
        return _Subprocess(process.start(command, share=share, variables=pin.variables))


class _Subprocess:
    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self._popen = popen

    @property
    def pid(self) -> int:
        return self._popen.pid

    def exit_code(self) -> int | None:
        return process.ended(self._popen)

    def terminate(self) -> None:
        self._popen.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        process.kill(self._popen)
