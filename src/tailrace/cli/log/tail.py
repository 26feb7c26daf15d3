"""`tailrace tail`: the log as it grows, on the terminal or as JSON lines."""

# ruff: noqa: PLC0415 - numpy is loaded when the command runs, not for --help

from __future__ import annotations

import time
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from tailrace.cli import options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tailrace.change import Change
    from tailrace.cli.log.printer import Printer
    from tailrace.log.reader import Log, Start
    from tailrace.position import Position

_WAIT_S = 0.5
_POLL_S = 0.05


def tail(
    *,
    tables: Annotated[
        list[str] | None,
        typer.Option(
            "--table",
            "-t",
            metavar="PATTERN",
            help="Only tables that match: orders (in any schema), sales.*, *.order_*. Repeatable.",
        ),
    ] = None,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="PLACE",
            help="earliest, latest, an LSN (16/B374D848) or a time (2026-01-31T12:00:00Z).",
        ),
    ] = "latest",
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line instead of text.")
    ] = False,
    follow: Annotated[
        bool,
        typer.Option("--follow/--no-follow", help="Wait for more, or stop at the log's end."),
    ] = True,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Stop after this many changes.")
    ] = None,
    config: options.ConfigFile = None,
    log: options.LogPath = None,
) -> None:
    """Show the changes in the log, live.

    Needs the log alone, not the database, and disturbs nobody. Shows whole transactions that are
    safe on disk. An update shows what is different where the old row is known (REPLICA IDENTITY
    FULL), the new row otherwise; ⟨unchanged⟩ is a large value PostgreSQL did not send again.

    \b
    Examples:
      tailrace tail
      tailrace tail --table orders --table 'sales.*'
      tailrace tail --from earliest --no-follow --limit 20
      tailrace tail --from 2026-01-31T12:00:00Z --json | jq 'select(.op == "delete") | .key'
    """
    from tailrace.cli.log.printer import Printer, close_quietly, reader_gone
    from tailrace.log.start import parse_start

    place = parse_start(start)
    path = options.settings(config, log=log).log.path
    wanted = Wanted(tables=tables or [], limit=limit)
    try:
        printer = Printer(as_json=as_json)
        if follow:
            show_live(path, place, wanted, printer, stopping=reader_gone)
        else:
            show_present(path, place, wanted, printer)
    except BrokenPipeError:
        close_quietly()
    except KeyboardInterrupt:
        return


@dataclass(slots=True, kw_only=True)
class Wanted:
    """Which changes are shown, and how many are still to come."""

    tables: Sequence[str] = field(default_factory=list)
    limit: int | None = None

    def takes(self, change: Change) -> bool:
        """Whether `change` is one of them; counts it if so."""
        if self.tables and not matches(change, self.tables):
            return False
        if self.limit is not None:
            self.limit -= 1
        return True

    @property
    def done(self) -> bool:
        """Whether the limit is reached."""
        return self.limit == 0


def matches(change: Change, patterns: Sequence[str]) -> bool:
    """Whether the change's table fits one of the patterns; a logical message has no table."""
    relation = change.relation
    return relation is not None and any(
        fnmatchcase(relation.qualified_name if "." in pattern else relation.name, pattern)
        for pattern in patterns
    )


def show_present(path: Path, start: Start, wanted: Wanted, printer: Printer) -> None:
    """What the log holds now."""
    from tailrace.log.reader import Log

    log = Log.open(path)
    _show(log, log.resolve(start), log.end().position, wanted, printer)


def show_live(
    path: Path, start: Start, wanted: Wanted, printer: Printer, *, stopping: Callable[[], bool]
) -> None:
    """What the log holds from `start` on, and then what comes, until `stopping` or the limit."""
    for log, after, upto in live_ranges(path, start, stopping=stopping):
        _show(log, after, upto, wanted, printer)
        if wanted.done:
            return


def _show(log: Log, after: Position, upto: Position, wanted: Wanted, printer: Printer) -> None:
    from tailrace.log.changes import read_changes

    for change in read_changes(log, after, upto):
        if wanted.takes(change):
            printer.show(change)
        if wanted.done:
            break
    printer.flush()


def live_ranges(
    path: Path, start: Start, *, stopping: Callable[[], bool]
) -> Iterator[tuple[Log, Position, Position]]:
    """One range of the log `(after, upto]` after another, as it grows."""
    from tailrace.log.reader import Earliest, Latest

    found = _wait_for_log(path, stopping)
    if found is None:
        return
    log, waited = found
    # All of a log that was made while we waited is new.
    after = log.resolve(Earliest() if waited and start == Latest() else start)
    while not stopping():
        upto = log.wait(after, _WAIT_S).position
        if upto > after:
            yield log, after, upto
            after = upto


def _wait_for_log(path: Path, stopping: Callable[[], bool]) -> tuple[Log, bool] | None:
    """The log, and whether it had to be waited for; None when told to stop first."""
    from tailrace.log.format import mark
    from tailrace.log.reader import Log
    from tailrace.log.store import LocalStore

    waited = False
    # A new log can be read from its first durable mark on.
    while mark.read(LocalStore(path)) is None:
        if not waited:
            note = Text(f"no log in {path} yet: waiting for `tailrace capture` to make it")
            Console(stderr=True, soft_wrap=True).print(note, style="dim")
            waited = True
        if stopping():
            return None
        time.sleep(_POLL_S)
    return Log.open(path), waited
