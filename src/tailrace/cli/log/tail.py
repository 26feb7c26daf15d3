"""`tailrace tail`: follow the log, as text on the terminal or as JSON lines."""

# ruff: noqa: PLC0415 - numpy is loaded when the command runs, not for --help

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from tailrace.cli import options
from tailrace.log.choice import of_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tailrace.change import Change
    from tailrace.cli.log.printer import Printer
    from tailrace.log.reader import Log, Start
    from tailrace.position import Position

_WAIT_S = 0.5
_POLL_S = 0.05


Patterns = Annotated[
    list[str] | None,
    typer.Option(
        "--table",
        "-t",
        metavar="PATTERN",
        help="Only tables that match: orders (in any schema), sales.*, *.order_*. May be repeated.",
    ),
]
From = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="START",
        help="Where to start: earliest, latest, an LSN (16/B374D848) or a time "
        "(2026-01-31T12:00:00Z).",
    ),
]
JsonLines = Annotated[
    bool, typer.Option("--json", help="One JSON object per line instead of text.")
]
Limit = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Stop after this many changes.")
]


def tail(
    *,
    tables: Patterns = None,
    start: From = "latest",
    as_json: JsonLines = False,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow/--no-follow", help="Wait for new changes, or stop at the end of the log."
        ),
    ] = True,
    limit: Limit = None,
    config: options.ConfigFile = None,
    log: options.LogPath = None,
) -> None:
    """Show changes as capture appends them to the log.

    Needs only the log, not the database, and does not affect capture or pipelines. Shows whole,
    durable transactions. An update shows the changed columns if the old row is known (REPLICA
    IDENTITY FULL), else the new row. ⟨unchanged⟩ is a TOAST value that PostgreSQL does not send
    because the update did not change it.

    \b
    Examples:
      Follow all tables:
        tailrace tail
      Follow some tables:
        tailrace tail --table orders --table 'sales.*'
      Show the first 20 changes in the log and stop:
        tailrace tail --from earliest --no-follow --limit 20
      Print the keys of deleted rows:
        tailrace tail --from 2026-01-31T12:00:00Z --json | jq 'select(.op == "delete") | .key'
    """
    from tailrace.cli.log.printer import Printer, close_quietly, reader_gone
    from tailrace.log.start import parse_start

    place = parse_start(start)
    path = options.settings(config, log=log).log.path
    selection = Selection(tables=tables or [], limit=limit)
    try:
        printer = Printer(as_json=as_json)
        if follow:
            show_live(path, place, selection, printer, stopping=reader_gone)
        else:
            show_present(path, place, selection, printer)
    except BrokenPipeError:
        close_quietly()
    except KeyboardInterrupt:
        return


@dataclass(slots=True, kw_only=True)
class Selection:
    """Which changes are shown, and how many more at most."""

    tables: Sequence[str] = field(default_factory=list)
    limit: int | None = None

    def takes(self, change: Change) -> bool:
        """Whether to show `change`; counts it against the limit."""
        if self.tables and not of_tables(change, self.tables):
            return False
        if self.limit is not None:
            self.limit -= 1
        return True

    @property
    def done(self) -> bool:
        """Whether the limit is reached."""
        return self.limit == 0


def show_present(path: Path, start: Start, selection: Selection, printer: Printer) -> None:
    """Show the changes that the log holds now."""
    from tailrace.log.reader import Log

    log = Log.open(path)
    _show(log, log.resolve(start), log.end().position, selection, printer)


def show_live(
    path: Path,
    start: Start,
    selection: Selection,
    printer: Printer,
    *,
    stopping: Callable[[], bool],
) -> None:
    """Show the changes from `start` on and new ones, until `stopping` or the limit."""
    for log, after, upto in live_ranges(path, start, stopping=stopping):
        _show(log, after, upto, selection, printer)
        if selection.done:
            return


def _show(
    log: Log, after: Position, upto: Position, selection: Selection, printer: Printer
) -> None:
    from tailrace.log.changes import read_changes

    for change in read_changes(log, after, upto):
        if selection.takes(change):
            printer.show(change)
        if selection.done:
            break
    printer.flush()


def live_ranges(
    path: Path, start: Start, *, stopping: Callable[[], bool]
) -> Iterator[tuple[Log, Position, Position]]:
    """One range `(after, upto]` after another, as the log grows."""
    from tailrace.log.reader import Earliest, Latest

    opened = _wait_for_log(path, stopping)
    if opened is None:
        return
    log, waited = opened
    # Everything in a log that was created meanwhile is new.
    after = log.resolve(Earliest() if waited and start == Latest() else start)
    while not stopping():
        upto = log.wait(after, _WAIT_S).position
        if upto > after:
            yield log, after, upto
            after = upto


def _wait_for_log(path: Path, stopping: Callable[[], bool]) -> tuple[Log, bool] | None:
    """The log, and whether it was created after the start; None if `stopping` was true first."""
    from tailrace.log.format import mark
    from tailrace.log.reader import Log
    from tailrace.log.store import LocalStore

    waited = False
    # A new log is readable once it has a durable mark.
    while mark.read(LocalStore(path)) is None:
        if not waited:
            note = Text(f"no log in {path} yet: waiting for `tailrace capture` to create it")
            Console(stderr=True, soft_wrap=True).print(note, style="dim")
            waited = True
        if stopping():
            return None
        time.sleep(_POLL_S)
    return Log.open(path), waited
