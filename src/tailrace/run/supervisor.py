"""`tailrace run`: starts the processes of a config, keeps them up, and stops them in order.

The numbered rules:

1. Each process is its own; any may die and come back without loss, because the log is durable
   first and pipelines remember their place.
2. A process that ends is started again after 1 s, then 2 s, up to 30 s; a minute of health sets
   that back.
3. An exit code of a state that cannot mend by itself (GAP, DISK_FULL, BAD_CONFIG ...) is final: the
   process stays down, and is shown. The others go on: pipelines still deliver what the log holds.
4. SIGTERM or SIGINT stops all, one after the other, capture first. A second one hurries.
5. When the supervisor dies, however that happens, its children end; a new one waits until they
   have: two of a kind over one folder would be in each other's way.
6. SIGHUP has the settings read again: pipelines and HTTP endpoints stop in order and start with the
   new ones, those that were down for good as well. Settings that are wrong change nothing. Capture
   goes on; what is in the log is not lost on anybody.
7. When every worker is down for good there is nothing left to supervise: the supervisor ends with
   the exit code of the one that failed first.
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import math
import os
import signal
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

import structlog

from tailrace import process
from tailrace.errors import AlreadyRunningError, Retry, StorageError, TailraceError
from tailrace.postgres.bootstrap import log_exists
from tailrace.run import status

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from types import FrameType

    from tailrace.config import Config

_TICK_S = 0.05
_LOCK = "run.lock"
_ENDING_S = 60.0
"""How long the processes of a supervisor that is gone may take to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """A process to keep up. It is not started before `ready` says so."""

    name: str
    command: tuple[str, ...]
    worker: bool = True
    """Whether it moves data: without any worker left, there is nothing to supervise."""
    stop_s: float = 10.0
    """How long it may take to stop before it is killed."""
    reloads: bool = True
    """Whether it starts anew when the settings are read again."""
    ready: Callable[[], bool] = lambda: True


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How soon a process that ended is started again."""

    first_s: float = 1.0
    limit_s: float = 30.0
    healthy_s: float = 60.0

    def delay_s(self, failures: int) -> float:
        """The wait after so many failures in a row.

        >>> [Pace().delay_s(failures) for failures in range(1, 8)]
        [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
        """
        return min(self.first_s * 2.0 ** min(failures - 1, 60), self.limit_s)


class State(enum.Enum):
    """Where a supervised process stands."""

    WAITING = "waiting"
    RUNNING = "running"
    BACKING_OFF = "backing-off"
    FAILED = "failed"
    STOPPED = "stopped"


def _final(kind: type[TailraceError]) -> Iterator[tuple[int, type[TailraceError]]]:
    for each in kind.__subclasses__():
        if "code" in vars(each) and each.retry is Retry.NEVER:
            yield each.exit_code, each
        yield from _final(each)


FINAL = dict(_final(TailraceError))
"""Exit codes that starting again cannot help. 1 is not among them: any crash may have it."""


class Child:
    """One supervised process and its history."""

    def __init__(self, spec: Spec, pace: Pace, share: Sequence[int] = ()) -> None:
        self.spec = spec
        self._share = share
        self.state = State.WAITING
        self.restarts = 0
        self.exit_code: int | None = None
        self._pace = pace
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = False
        self._reloading_until = 0.0
        self._failures = 0
        self._started_at = 0.0
        self._again_at = 0.0
        self._events = structlog.get_logger().bind(process=spec.name)

    @property
    def up(self) -> bool:
        """Whether there is a process at the moment."""
        return self._process is not None

    def tick(self, now: float) -> None:
        """Notice an end; start what is due."""
        if self._process is not None:
            code = process.ended(self._process)
            if code is not None:
                self._note_end(code, now)
            elif self._reloading_until and now > self._reloading_until:
                self._reloading_until = math.inf
                self._events.error("process.killed")
                process.kill(self._process)
        elif self.state is not State.FAILED and now >= self._again_at and self.spec.ready():
            self._start(now)

    def _start(self, now: float) -> None:
        self.restarts += self.exit_code is not None
        self._process = process.start(self.spec.command, share=self._share)
        self._started_at = now
        self.state = State.RUNNING
        self._events.info("process.started", pid=self._process.pid, restarts=self.restarts)

    def _note_end(self, code: int, now: float) -> None:
        self._process, self.exit_code = None, code
        if self._reloading_until:
            self._reloading_until = 0.0
            self.state, self._again_at = State.WAITING, now
            return
        if code in FINAL:
            self.state = State.FAILED
            self._events.error("process.failed", exit=named(code), hint=FINAL[code].default_hint)
            return
        if now - self._started_at >= self._pace.healthy_s:
            self._failures = 0
        self._failures += 1
        delay_s = self._pace.delay_s(self._failures)
        self.state, self._again_at = State.BACKING_OFF, now + delay_s
        self._events.warning("process.ended", exit=named(code), again_in_s=delay_s)

    def reload(self, now: float) -> None:
        """Start anew, with whatever settings there are then."""
        if self._process is not None:
            self._reloading_until = now + self.spec.stop_s
            self.ask_to_stop()
        elif self.state in {State.FAILED, State.BACKING_OFF}:
            self.state, self._again_at = State.WAITING, now

    def ask_to_stop(self) -> None:
        """SIGTERM, if it runs."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)

    def stopped(self, *, insist: bool) -> bool:
        """Whether it is down; with `insist` it is killed."""
        if self._process is not None:
            code = process.ended(self._process)
            if code is None:
                if insist and not self._killed:
                    self._killed = True
                    self._events.error("process.killed")
                    process.kill(self._process)
                return False
            self._process, self.exit_code = None, code
            self._events.info("process.stopped", exit=named(code))
        if self.state is not State.FAILED:
            self.state = State.STOPPED
        return True

    def fields(self) -> dict[str, object]:
        """For the status file."""
        failed = self.state is State.FAILED and self.exit_code is not None
        return {
            "state": self.state.value,
            "pid": self._process.pid if self._process is not None else None,
            "restarts": self.restarts,
            "exit_code": self.exit_code,
            "code": FINAL[self.exit_code].code if failed and self.exit_code in FINAL else "",
            "worker": self.spec.worker,
        }


def named(code: int) -> str:
    """An exit code with the name it has.

    >>> named(10), named(-9), named(0)
    ('10 GAP', 'SIGKILL', '0')
    """
    if code in FINAL:
        return f"{code} {FINAL[code].code}"
    if code >= 0:
        return str(code)
    known = {signum.value: signum.name for signum in signal.Signals}
    return known.get(-code, f"signal {-code}")


class Supervisor:
    """Runs children until told to stop, or until no worker can go on."""

    def __init__(
        self,
        specs: Sequence[Spec],
        where: Path,
        *,
        pace: Pace | None = None,
        share: Sequence[int] = (),
        check: Callable[[], object] = lambda: None,
    ) -> None:
        self._children = [Child(spec, pace or Pace(), share) for spec in specs]
        self._check = check
        self._reload = False
        self._where = where
        self._signals = 0
        self._began = time.time()
        self._reported_at = 0.0
        self._first_failure: int | None = None

    def stop(self) -> None:
        """Ask for the end; from a signal handler, so nothing but a count is touched."""
        self._signals += 1

    def reload(self) -> None:
        """Have the settings read again; from a signal handler, too."""
        self._reload = True

    def run(self) -> int:
        """Supervise. Returns the exit code of the whole."""
        status.clear(self._where)
        try:
            while not self._signals and not self._hopeless():
                if self._reload:
                    self._reload = False
                    self._reload_all()
                for child in self._children:
                    child.tick(time.monotonic())
                    self._report("running")
                time.sleep(_TICK_S)
            return 0 if self._signals else self._first_failure or 1
        finally:
            self._stop_all()

    def _reload_all(self) -> None:
        events = structlog.get_logger()
        try:
            self._check()
        except TailraceError as error:
            events.error("run.not-reloaded", reason=str(error), hint=error.hint)
            return
        events.info("run.reloading")
        for child in self._children:
            if child.spec.reloads:
                child.reload(time.monotonic())

    def _hopeless(self) -> bool:
        """Whether all workers are down for good, or wait for one that is."""
        workers = [child for child in self._children if child.spec.worker]
        failed = [child for child in workers if child.state is State.FAILED]
        if failed and self._first_failure is None:
            self._first_failure = failed[0].exit_code
        down = {State.FAILED, State.WAITING}
        return bool(failed) and all(child.state in down for child in workers)

    def _stop_all(self) -> None:
        for child in self._children:
            child.ask_to_stop()
            deadline = time.monotonic() + child.spec.stop_s
            while not child.stopped(insist=self._signals > 1 or time.monotonic() > deadline):
                self._report("stopping")
                time.sleep(_TICK_S)
        self._report("stopped", at_once=True)

    def _report(self, state: str, *, at_once: bool = False) -> None:
        now = time.monotonic()
        if not at_once and now - self._reported_at < status.EVERY_S:
            return
        self._reported_at = now
        fields = {child.spec.name: child.fields() for child in self._children}
        began = {"state": state, "started_at": self._began}
        status.write(self._where, "run", {**began, "processes": fields})


def processes(config: Config, file: Path, *, metrics_lines: bool = False) -> list[Spec]:
    """The processes a config asks for, in the order in which they start and stop."""
    tailrace = (sys.executable, "-m", "tailrace.cli")
    settings = ("-c", str(file))
    specs = [Spec(name="capture", command=(*tailrace, "capture", *settings), reloads=False)]
    if config.pipelines:
        specs.append(
            Spec(
                name="pipelines",
                command=(*tailrace, "pipelines", *settings),
                # Spark finishes the micro-batch at hand.
                stop_s=30.0,
                # Before capture has reached PostgreSQL for the first time there is no log.
                ready=lambda: log_exists(config.log.path),
            )
        )
    extra = ("--metrics-lines",) if metrics_lines else ()
    command = (*tailrace, "serve", *settings, "--supervised", *extra)
    return [*specs, Spec(name="serve", command=command, worker=False, stop_s=5.0)]


def supervise(
    specs: Sequence[Spec],
    data: Path,
    *,
    pace: Pace | None = None,
    check: Callable[[], object] = lambda: None,
) -> int:
    """Run processes over a data folder until SIGTERM or SIGINT; the exit code.

    `check` reads the settings again before SIGHUP has the processes do so.
    """
    where = status.folder(data)
    with _alone(where) as lock:
        supervisor = Supervisor(specs, where, pace=pace, share=(lock,), check=check)

        def on_signal(signum: int, _frame: FrameType | None) -> None:
            supervisor.stop()
            structlog.get_logger().info("run.stopping", signal=signal.Signals(signum).name)

        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, on_signal)
        if sys.stdin is None or not sys.stdin.isatty():
            # From a terminal it means that the terminal is gone, and ends us as ever.
            signal.signal(signal.SIGHUP, lambda _signum, _frame: supervisor.reload())
        return supervisor.run()


@contextlib.contextmanager
def _alone(where: Path) -> Iterator[int]:
    """One supervisor a data folder, by a lock that it shares with its children.

    The kernel lets go of it when the last of them has ended, whatever ended them.
    """
    try:
        where.mkdir(parents=True, exist_ok=True)
        lock = (where / _LOCK).open("a+")
    except OSError as error:
        raise StorageError(f"cannot use {where}: {error.strerror}") from error
    with lock:
        deadline = time.monotonic() + _ENDING_S
        while not _taken(lock):
            if _holder_lives(lock) or time.monotonic() > deadline:
                raise AlreadyRunningError(
                    f"another `tailrace run` is at work in {where.parent}",
                    hint="Stop the other one first, or give this one a `data` folder of its own.",
                )
            time.sleep(_TICK_S)
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield lock.fileno()


def _taken(lock: TextIO) -> bool:
    try:
        fcntl.flock(lock.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder_lives(lock: TextIO) -> bool:
    """Whether the supervisor itself is there, and not only what it has left behind."""
    lock.seek(0)
    written = lock.read().strip()
    return not written.isdecimal() or process.alive(int(written))
