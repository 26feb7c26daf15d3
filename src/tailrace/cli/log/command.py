"""`tailrace log`: list, print, verify and truncate a log, and its pins."""

# ruff: noqa: PLC0415 - numpy is loaded when a command runs, not for --help

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tailrace.cli import options  # noqa: TC001 - typer reads the annotations
from tailrace.cli.log.pins import pins, unpin
from tailrace.cli.log.store import open_store
from tailrace.cli.log.tail import From, JsonLines, Limit, Patterns, Selection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tailrace.log.format.segment import SegmentName
    from tailrace.log.listing import Listing
    from tailrace.log.store import LocalStore
    from tailrace.log.verify import Report
    from tailrace.position import Position

_CORRUPT_EXIT_CODE = 14
_LAST_ORDINAL = (1 << 64) - 1
_STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan"}

log_app = typer.Typer(
    name="log", no_args_is_help=True, help="List, print, verify and truncate the log."
)
log_app.command()(pins)
log_app.command()(unpin)


@log_app.command()
def ls(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    config: options.ConfigFile = None,
    log: options.LogPath = None,
) -> None:
    """List the segments, the end of the log, and the pins of its readers.

    A pin is the position of a reader, such as a pipeline: retention keeps every segment after it.
    Reads only headers, so it is fast for large logs, and may run while capture appends.

    \b
    Examples:
      tailrace log ls
      Count the segments:
        tailrace log ls --json | jq '.segments | length'
    """
    from tailrace.log.listing import listing, listing_json

    segments = listing(open_store(config, log))
    if as_json:
        typer.echo(json.dumps(listing_json(segments), indent=2, ensure_ascii=False))
    else:
        _show_listing(segments)


def _show_listing(listing: Listing) -> None:
    table = Table(box=None, pad_edge=False)
    for heading in ("segment", "after", "up to", "last commit (UTC)"):
        table.add_column(heading, no_wrap=True)
    for heading in ("entries", "changes", "bytes", "epoch"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in listing.rows:
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
    end = listing.end
    console.print(
        f"end: {end.position}, acknowledged to PostgreSQL: at most {end.end_lsn}, epoch {end.epoch}"
    )
    for name, position in sorted(listing.pins.items()):
        console.print(Text(f"pin {name}: {position}"))


@log_app.command()
def cat(
    *,
    start: From = "earliest",
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="LSN",
            help="Stop after the transaction that commits at this LSN, or after a position in it "
            "(16/B374D848.3).",
        ),
    ] = None,
    tables: Patterns = None,
    as_json: JsonLines = False,
    limit: Limit = None,
    config: options.ConfigFile = None,
    log: options.LogPath = None,
) -> None:
    """Print the changes in a range of the log, one per line.

    Needs only the log, not the database. Use `tailrace tail` to follow the log as it grows.

    \b
    Examples:
      Print the first 20 changes:
        tailrace log cat --limit 20
      Print the changes of one table in a range:
        tailrace log cat --from 2026-01-31T12:00:00Z --to 16/B374D848 --table orders
      Count the operations:
        tailrace log cat --json | jq -r .op | sort | uniq -c
    """
    from tailrace.cli.log.printer import Printer, close_quietly
    from tailrace.log.changes import read_changes
    from tailrace.log.reader import Log
    from tailrace.log.start import parse_start

    place = parse_start(start)
    upto = None if to is None else _position(to, ordinal=_LAST_ORDINAL)
    opened = Log(open_store(config, log))
    selection = Selection(tables=tables or [], limit=limit)
    try:
        printer = Printer(as_json=as_json)
        for change in read_changes(opened, opened.resolve(place), upto):
            if selection.takes(change):
                printer.show(change)
            if selection.done:
                break
        printer.flush()
    except BrokenPipeError:
        close_quietly()


def _position(text: str, *, ordinal: int) -> Position:
    """Read `X/Y.ordinal`, or `X/Y` with this ordinal."""
    from tailrace.errors import ConfigError
    from tailrace.position import Lsn, Position

    try:
        return Position.parse(text) if "." in text else Position(Lsn.parse(text), ordinal)
    except ValueError as error:
        hint = "Write an LSN such as 16/B374D848 or a position such as 16/B374D848.3."
        raise ConfigError(f"invalid position {text!r}", hint=hint) from error


@log_app.command()
def verify(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
    config: options.ConfigFile = None,
    log: options.LogPath = None,
) -> None:
    """Verify the whole log: checksums, order, grammar, index and durable mark.

    Changes nothing and may run while capture appends. A warning costs time at most; an error means
    that the log is damaged.

    \b
    Exit codes:
      0   no errors; warnings are allowed
      14  the log is corrupt

    \b
    Examples:
      tailrace log verify
      List the defects as JSON:
        tailrace log verify --json | jq '.findings[]'
    """
    from tailrace.log.verify import verify as check

    store = open_store(config, log)
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
    """A progress bar on stderr if that is a terminal."""
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
        # Text from a damaged file may contain control characters.
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
    position: Annotated[
        str,
        typer.Argument(
            metavar="POSITION", help="An LSN (16/B374D848) or a position (16/B374D848.3)."
        ),
    ],
    *,
    force: Annotated[
        bool, typer.Option("--force", help="Also delete segments that a pinned reader needs.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the segments to delete; delete nothing.")
    ] = False,
    config: options.ConfigFile = None,
    log: options.LogPath = None,
) -> None:
    """Delete the segments that end before a position.

    Deletes whole segments, oldest first. The last segment always stays, and the rest of the log
    begins with a whole transaction. Capture deletes expired segments by itself; use this command to
    free space earlier.

    The command refuses to delete segments that a pinned reader has not read. With --force it
    deletes them, and the changes in them are lost to that reader.

    \b
    Examples:
      List what would be deleted:
        tailrace log truncate-before 16/B374D848 --dry-run
      Delete it:
        tailrace log truncate-before 16/B374D848
    """
    from tailrace.log import retention

    before = _just_before(_position(position, ordinal=0))
    store = open_store(config, log)
    segments = retention.before(store, before)
    if not force:
        _check_pins(store, segments, before)
    total = sum(store.size(name.file) for name in segments)
    if not dry_run:
        retention.delete(store, segments)
    for name in segments:
        typer.echo(f"{'would delete' if dry_run else 'deleted'} {name.file}")
    typer.echo(f"{len(segments)} segments, {total:,} bytes")


def _just_before(position: Position) -> Position:
    """The last position before this one."""
    from tailrace.position import Lsn, Position

    if position.ordinal:
        return Position(position.lsn, position.ordinal - 1)
    return Position(Lsn(max(position.lsn - 1, 0)), _LAST_ORDINAL)


def _check_pins(store: LocalStore, segments: list[SegmentName], before: Position) -> None:
    """Refuse to delete a segment that a pinned reader needs."""
    from tailrace.errors import ConfigError
    from tailrace.log import retention

    for name, pinned in sorted(retention.pins(store).items()):
        if pinned < before and len(retention.before(store, pinned)) < len(segments):
            raise ConfigError(
                f"reader {name} is at {pinned} and needs the changes after it",
                hint=f"Truncate before {pinned}, wait for the reader, or use --force to delete "
                "changes that it has not read.",
            )
