"""`tailrace log`: look into a log, check it, and cut its beginning off."""

# ruff: noqa: PLC0415 - numpy is loaded when a command runs, not for --help

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tailrace.cli import options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tailrace.cli.log.listing import Listing
    from tailrace.log.format.segment import SegmentName
    from tailrace.log.store import LocalStore
    from tailrace.log.verify import Report
    from tailrace.position import Position

_CORRUPT_EXIT_CODE = 14
_LAST_ORDINAL = (1 << 64) - 1
_STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan"}

log_app = typer.Typer(name="log", no_args_is_help=True, help="Look into the log and check it.")


@log_app.command()
def ls(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    config: options.ConfigFile = None,
    log: options.LogPath = None,
) -> None:
    """List the segments, the end of the log, and who still needs it.

    \b
    Examples:
      tailrace log ls
      tailrace log ls --json | jq '.segments | length'
    """
    from tailrace.cli.log.listing import listing, listing_json

    found = listing(_store(config, log))
    if as_json:
        typer.echo(json.dumps(listing_json(found), indent=2, ensure_ascii=False))
    else:
        _show_listing(found)


def _store(config: Path | None, log: Path | None) -> LocalStore:
    """The log's folder; ConfigError when there is no log in it."""
    from tailrace.log.format.segment import SUFFIX
    from tailrace.log.reader import Log
    from tailrace.log.store import LocalStore

    path = options.settings(config, log=log).log.path
    store = LocalStore(path)
    if not any(name.endswith(SUFFIX) for name in store.names()):
        Log.open(path)
    return store


def _show_listing(found: Listing) -> None:
    table = Table(box=None, pad_edge=False)
    for heading in ("segment", "after", "up to", "last commit (UTC)"):
        table.add_column(heading, no_wrap=True)
    for heading in ("entries", "changes", "bytes", "epoch"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in found.rows:
        table.add_row(
            Text(row.name.file),
            str(row.after),
            str(row.upto),
            row.last_commit or "-",
            f"{row.entries:,}",
            f"{row.changes:,}",
            f"{row.bytes:,}",
            str(row.epoch),
        )
    console = Console(highlight=False, soft_wrap=True)
    console.print(table)
    end = found.end
    console.print(
        f"end: {end.position}, acknowledged to PostgreSQL at most {end.end_lsn}, epoch {end.epoch}"
    )
    for name, position in sorted(found.pins.items()):
        console.print(Text(f"pin {name}: {position}"))


@log_app.command()
def cat(
    *,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="PLACE",
            help="earliest, latest, an LSN (16/B374D848) or a time (2026-01-31T12:00:00Z).",
        ),
    ] = "earliest",
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="LSN",
            help="Stop behind the transaction that commits at this LSN, or at a position in it.",
        ),
    ] = None,
    tables: Annotated[
        list[str] | None,
        typer.Option(
            "--table",
            "-t",
            metavar="PATTERN",
            help="Only tables that match: orders (in any schema), sales.*, *.order_*. Repeatable.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line instead of text.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Stop after this many changes.")
    ] = None,
    config: options.ConfigFile = None,
    log: options.LogPath = None,
) -> None:
    """Print the changes in a part of the log, one a line.

    \b
    Examples:
      tailrace log cat --limit 20
      tailrace log cat --from 2026-01-31T12:00:00Z --to 16/B374D848 --table orders
      tailrace log cat --json | jq -r .op | sort | uniq -c
    """
    from tailrace.cli.log.printer import Printer, close_quietly
    from tailrace.cli.log.tail import Wanted
    from tailrace.log.changes import read_changes
    from tailrace.log.reader import Log
    from tailrace.log.start import parse_start

    place = parse_start(start)
    upto = None if to is None else _position(to, ordinal=_LAST_ORDINAL)
    opened = Log(_store(config, log))
    wanted = Wanted(tables=tables or [], limit=limit)
    try:
        printer = Printer(as_json=as_json)
        for change in read_changes(opened, opened.resolve(place), upto):
            if wanted.takes(change):
                printer.show(change)
            if wanted.done:
                break
        printer.flush()
    except BrokenPipeError:
        close_quietly()


def _position(text: str, *, ordinal: int) -> Position:
    """Read `X/Y.ordinal`, or `X/Y` with the ordinal given."""
    from tailrace.errors import ConfigError
    from tailrace.position import Lsn, Position

    try:
        return Position.parse(text) if "." in text else Position(Lsn.parse(text), ordinal)
    except ValueError as error:
        hint = "Write an LSN such as 16/B374D848 or a position such as 16/B374D848.3."
        raise ConfigError(f"{text!r} is no position in a log", hint=hint) from error


@log_app.command()
def verify(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
    config: options.ConfigFile = None,
    log: options.LogPath = None,
) -> None:
    """Check every byte of the log: checksums, order, grammar, index and mark.

    Changes nothing and may run beside a capture.

    Exit code: 0 when all is well (warnings are allowed), 14 when something is corrupt.

    \b
    Examples:
      tailrace log verify
      tailrace log verify --json | jq '.findings[]'
    """
    from tailrace.log.verify import verify as check

    store = _store(config, log)
    with _progress("verifying") as progress:
        report = check(store, progress=progress)
    if as_json:
        typer.echo(json.dumps(_report_json(report), indent=2, ensure_ascii=False))
    else:
        _show_report(report)
    if not report.ok:
        raise typer.Exit(_CORRUPT_EXIT_CODE)


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal's stderr; nothing elsewhere."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _report_json(report: Report) -> dict[str, Any]:
    return {
        "ok": report.ok,
        "end": str(report.end.position) if report.end else None,
        "segments": [
            {
                "file": part.name.file,
                "bytes": part.bytes,
                "entries": part.entries,
                "transactions": part.transactions,
                "changes": part.changes,
                "findings": len(part.findings),
            }
            for part in report.segments
        ],
        "findings": [
            {
                "severity": finding.severity.value,
                "file": finding.file,
                "offset": finding.offset,
                "problem": finding.problem,
            }
            for finding in report.findings
        ],
    }


def _show_report(report: Report) -> None:
    from tailrace.cli.log.render import escape

    console = Console(highlight=False, soft_wrap=True)
    for finding in report.findings:
        place = finding.file if finding.offset is None else f"{finding.file}:{finding.offset}"
        style = _STYLES[finding.severity.value]
        # What a damaged file says may hold anything.
        text = Text.assemble((f"{finding.severity.value}: ", style), f"{place}: ")
        console.print(text.append(escape(finding.problem)))
    entries = sum(part.entries for part in report.segments)
    changes = sum(part.changes for part in report.segments)
    verdict = ("ok", "bold green") if report.ok else ("CORRUPT", "bold red")
    console.print(
        Text.assemble(
            verdict, f": {len(report.segments)} segments, {entries:,} entries, {changes:,} changes"
        )
    )


@log_app.command("truncate-before")
def truncate_before(
    position: Annotated[str, typer.Argument(metavar="POSITION", help="16/B374D848 or an LSN.N")],
    *,
    force: Annotated[
        bool, typer.Option("--force", help="Also what a pinned reader still needs.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would go and delete nothing.")
    ] = False,
    config: options.ConfigFile = None,
    log: options.LogPath = None,
) -> None:
    """Delete the segments that hold nothing at or after a position.

    Whole segments go, oldest first; the last one always stays, and what remains begins with a
    whole transaction. Readers that are pinned before the position stop it, unless --force is given:
    what they have not read is then lost to them.

    \b
    Examples:
      tailrace log truncate-before 16/B374D848 --dry-run
      tailrace log truncate-before 16/B374D848
    """
    from tailrace.log import retention

    before = _just_before(_position(position, ordinal=0))
    store = _store(config, log)
    going = retention.before(store, before)
    if not force:
        _check_pins(store, going, before)
    total = sum(store.size(name.file) for name in going)
    if not dry_run:
        retention.delete(store, going)
    for name in going:
        typer.echo(f"{'would delete' if dry_run else 'deleted'} {name.file}")
    typer.echo(f"{len(going)} segments, {total:,} bytes")


def _just_before(position: Position) -> Position:
    """The greatest position that is less."""
    from tailrace.position import Lsn, Position

    if position.ordinal:
        return Position(position.lsn, position.ordinal - 1)
    return Position(Lsn(max(position.lsn - 1, 0)), _LAST_ORDINAL)


def _check_pins(store: LocalStore, going: list[SegmentName], before: Position) -> None:
    """Refuse where a reader would lose something."""
    from tailrace.errors import ConfigError
    from tailrace.log import retention

    for name, pinned in sorted(retention.pins(store).items()):
        if pinned < before and len(retention.before(store, pinned)) < len(going):
            raise ConfigError(
                f"the reader {name} has come to {pinned} and still needs what is after it",
                hint=f"Truncate before {pinned}, let it catch up, or use --force to take it away.",
            )
