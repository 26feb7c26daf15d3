"""`tailrace backfill`, `tailrace backfills`: the rows a table has, through a running pipeline."""

# ruff: noqa: PLC0415 - what is heavy is loaded when a command runs, not for --help

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tailrace.cli import options

if TYPE_CHECKING:
    from tailrace.config import Config

_LOOK_S = 0.25
_QUIET_S = 10.0

backfills_app = typer.Typer(name="backfills", help="List, pause, resume and cancel backfills.")


def backfill(
    pipeline: Annotated[str, typer.Argument(help="A pipeline of the settings file.")],
    table: Annotated[str, typer.Argument(help="A table, as in SQL: orders, sales.orders.")],
    *,
    where: Annotated[
        str, typer.Option(help="Only rows for which this SQL condition holds in PostgreSQL.")
    ] = "",
    rate: Annotated[float, typer.Option(min=0, help="Rows a second, at most. 0: no limit.")] = 0.0,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Show progress until it is over.")
    ] = True,
    config: options.ConfigFile = None,
) -> None:
    """Bring the rows a table has through a pipeline, while its changes go on.

    Rows pass the pipeline's own where, select, route and encoding, and reach its sink as operation
    `read`. They are read in pages by the table's key; a row that has changed meanwhile is left out,
    for its change is in the stream. A table without a key is read in one piece.

    The order is kept in the data folder: the engine that runs there takes it up, also after a
    crash. Ctrl-C ends the display, not the backfill.

    \b
    Examples:
      tailrace backfill shop orders
      tailrace backfill shop sales.orders --where "placed_at > '2026-01-01'" --rate 5000
      tailrace backfills pause fill-1794743604038
    """
    from tailrace.backfill import queue as desk

    settings = options.settings(config)
    order = desk.place(settings, pipeline, table, where=where, rate=rate)
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"{order.id}: {order.table} through {pipeline}")
    if not _engine_runs(settings):
        console.print("No engine runs on this data folder; the next one will take it up.")
        return
    if wait:
        raise typer.Exit(_watch(settings, order.id, console))


@backfills_app.callback(invoke_without_command=True)
def ls(
    context: typer.Context,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    config: options.ConfigFile = None,
) -> None:
    """List, pause, resume and cancel backfills; without a command, list them."""
    if context.invoked_subcommand is not None:
        return
    from tailrace.backfill import queue as desk

    found = desk.listing(options.settings(config))
    if as_json:
        typer.echo(json.dumps(found, indent=2, ensure_ascii=False))
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("backfill", "pipeline", "table", "state"):
        table.add_column(heading, no_wrap=True)
    for heading in ("rows", "of about", "rows/s"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("error")
    for each in found:
        table.add_row(
            each["id"], each["pipeline"], each["table"], each["state"], f"{each['rows']:,}",
            f"{each['rows_expected']:,}", f"{_rate(each):,.0f}", each["error"],
        )  # fmt: skip
    Console(highlight=False, soft_wrap=True).print(table)


def _rate(found: dict[str, Any]) -> float:
    return float(found["rows"] / found["seconds"]) if found["seconds"] else 0.0


Id = Annotated[str, typer.Argument(metavar="ID", help="As `tailrace backfills` lists it.")]


@backfills_app.command()
def pause(name: Id, *, config: options.ConfigFile = None) -> None:
    """Stop reading after the page on its way; `resume` goes on there."""
    _wish(config, name, "pause")


@backfills_app.command()
def resume(name: Id, *, config: options.ConfigFile = None) -> None:
    """Let a paused backfill go on."""
    _wish(config, name, "run")


@backfills_app.command()
def cancel(name: Id, *, config: options.ConfigFile = None) -> None:
    """End a backfill. Pages that are read already still arrive."""
    _wish(config, name, "cancel")


def _wish(config: Any, name: str, wanted: Any) -> None:
    from tailrace.backfill import queue as desk

    order = desk.wish(options.settings(config), name, wanted)
    typer.echo(f"{order.id}: {wanted}")


def _engine_runs(settings: Config) -> bool:
    from tailrace.run import status

    report = status.read(status.folder(settings.data), "pipelines", status.PipelinesStatus)
    return report is not None and report.up


def _watch(settings: Config, name: str, console: Console) -> int:
    """Show a backfill until it is over; its exit code."""
    from tailrace.backfill import queue as desk
    from tailrace.backfill.order import OVER

    columns = (
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[figures]}"), TimeRemainingColumn(),
    )  # fmt: skip
    said_at = 0.0
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("queued", total=1.0, figures="")
        while True:
            found: dict[str, Any] = next(
                each for each in desk.listing(settings) if each["id"] == name
            )
            figures = (
                f"{found['rows']:,} rows, {found['bytes'] / 1e6:,.1f} MB, {_rate(found):,.0f}/s"
            )
            progress.update(
                task, description=found["state"], completed=found["share"], figures=figures
            )
            if found["state"] in OVER:
                break
            if not console.is_terminal and time.monotonic() - said_at > _QUIET_S:
                said_at = time.monotonic()
                console.print(f"{found['state']}: {figures}")
            time.sleep(_LOOK_S)
    console.print(f"{found['state']}: {figures}")
    if found["error"]:
        console.print(found["error"])
    return 0 if found["state"] == "complete" else 1
