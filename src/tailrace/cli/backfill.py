"""`tailrace backfill` and `tailrace backfills`: submit, watch and control backfills.

The commands write orders to the data folder, or ask the system at `--at`. The running pipelines
carry them out.
"""

# ruff: noqa: PLC0415 - heavy modules are loaded when a command runs, not for --help

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tailrace.cli import options  # noqa: TC001 - typer reads the annotations
from tailrace.cli.at import At
from tailrace.cli.model_options import with_options

if TYPE_CHECKING:
    from tailrace.console.operations import Operations

_POLL_S = 0.25
_REPORT_S = 10.0
"""How often progress is printed if the output is not a terminal."""

backfills_app = typer.Typer(name="backfills", help="List, pause, resume and cancel backfills.")


@with_options(At)
def backfill(
    pipeline: Annotated[str, typer.Argument(help="Name of a pipeline in the settings file.")],
    table: Annotated[str, typer.Argument(help="Table name as in SQL: orders, sales.orders.")],
    *,
    at: At,
    where: Annotated[
        str, typer.Option(help="Read only rows that match this condition on the table's columns.")
    ] = "",
    rate: Annotated[float, typer.Option(min=0, help="Max rows per second. 0: no limit.")] = 0.0,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Show progress until the backfill ends.")
    ] = True,
    config: options.ConfigFile = None,
) -> None:
    """Deliver the existing rows of a table through a pipeline, while it delivers changes.

    Rows pass the pipeline's where, select, route and encoding, and reach its sink with operation
    `read`. Tailrace reads them in pages in key order, and skips a row that has changed since: its
    change is in the stream. A table without a key is read in one page.

    The order is stored in the data folder. The pipelines that run on that folder carry it out, also
    after a crash. Ctrl-C ends the display, not the backfill.

    \b
    Examples:
      tailrace backfill shop orders
      tailrace backfill shop sales.orders --where "placed_at > '2026-01-01'" --rate 5000
      tailrace backfills pause fill-1794743604038
    """
    system = at.system(config)
    order = {"pipeline": pipeline, "table": table, "where": where, "rate": rate}
    done = system.perform("/backfills/start", order)
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"{done['id']}: {done['table']} through {pipeline}")
    if not done["pipelines_run"]:
        console.print("No pipelines run on this data folder. The backfill starts when they do.")
        return
    if wait:
        raise typer.Exit(_watch(system, done["id"], console))


@backfills_app.callback(invoke_without_command=True)
@with_options(At)
def ls(
    context: typer.Context,
    *,
    at: At,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    config: options.ConfigFile = None,
) -> None:
    """List, pause, resume and cancel backfills. Without a subcommand, list them."""
    if context.invoked_subcommand is not None:
        return
    backfills = at.system(config).get("/backfills")["backfills"][::-1]
    if as_json:
        typer.echo(json.dumps(backfills, indent=2, ensure_ascii=False))
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("backfill", "pipeline", "table", "state"):
        table.add_column(heading, no_wrap=True)
    for heading in ("rows", "expected", "rows/s"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("error")
    for row in backfills:
        table.add_row(
            row["id"], row["pipeline"], row["table"], row["state"], f"{row['rows']:,}",
            f"{row['rows_expected']:,}", f"{_rate(row):,.0f}", row["error"],
        )  # fmt: skip
    Console(highlight=False, soft_wrap=True).print(table)


def _rate(progress: dict[str, Any]) -> float:
    return float(progress["rows"] / progress["seconds"]) if progress["seconds"] else 0.0


Id = Annotated[str, typer.Argument(metavar="ID", help="Id, as `tailrace backfills` lists it.")]


@backfills_app.command()
@with_options(At)
def pause(name: Id, *, at: At, config: options.ConfigFile = None) -> None:
    """Stop reading after the current page; `resume` continues from there."""
    _perform(at.system(config), name, "pause")


@backfills_app.command()
@with_options(At)
def resume(name: Id, *, at: At, config: options.ConfigFile = None) -> None:
    """Resume a paused backfill."""
    _perform(at.system(config), name, "resume")


@backfills_app.command()
@with_options(At)
def cancel(name: Id, *, at: At, config: options.ConfigFile = None) -> None:
    """Cancel a backfill. Pages that were already read are still delivered."""
    _perform(at.system(config), name, "cancel")


def _perform(system: Operations, name: str, action: str) -> None:
    from tailrace.console.operations import path_of

    done = system.perform(path_of("backfills", name, action), {})
    typer.echo(f"{done['id']}: {done['desired_state']}")


def _watch(system: Operations, name: str, console: Console) -> int:
    """Show a backfill until it ends; the exit code of the command."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[figures]}"), TimeRemainingColumn(),
    )  # fmt: skip
    printed_s = float("-inf")
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("queued", total=1.0, figures="")
        while True:
            listed = system.get("/backfills")["backfills"]
            row: dict[str, Any] = next(each for each in listed if each["id"] == name)
            figures = f"{row['rows']:,} rows, {row['bytes'] / 1e6:,.1f} MB, {_rate(row):,.0f}/s"
            progress.update(task, description=row["state"], completed=row["share"], figures=figures)
            if row["finished"]:
                break
            if not console.is_terminal and time.monotonic() - printed_s > _REPORT_S:
                printed_s = time.monotonic()
                console.print(f"{row['state']}: {figures}")
            time.sleep(_POLL_S)
    console.print(f"{row['state']}: {figures}")
    if row["error"]:
        console.print(row["error"])
    return 0 if row["state"] == "complete" else 1
