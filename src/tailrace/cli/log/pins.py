"""`tailrace log pins` and `tailrace log unpin`: the readers for which the log is kept."""

# ruff: noqa: PLC0415 - numpy is loaded when a command runs, not for --help

from __future__ import annotations

import json
from datetime import timedelta
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tailrace.cli import options  # noqa: TC001 - typer reads the annotations
from tailrace.cli.at import At
from tailrace.cli.model_options import with_options
from tailrace.errors import error_of


@with_options(At)
def pins(
    *,
    at: At,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    config: options.ConfigFile = None,
    log: options.LogPath = None,
) -> None:
    """List the readers for which the log is kept, and when each was last active.

    A reader renews its pin while it runs. The pin of a pipeline that was renamed or removed stays,
    and keeps the log, until it is given up with `tailrace log unpin`.

    \b
    Examples:
      tailrace log pins
      tailrace log unpin old-pipeline
    """
    found = at.system(config, log=log).get("/log", {"segments": "false"})
    if error := found["log"]["error"]:
        code, _, text = error.partition(": ")
        raise error_of(code)(text)
    rows = found["pins"]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("reader", "position", "WAL after it", "renewed"):
        table.add_column(heading, no_wrap=True)
    for row in rows:
        renewed = f"{timedelta(seconds=row['age_s'])} ago"
        table.add_row(Text(row["name"]), row["position"], f"{row['lag_bytes']:,}", renewed)
    Console(highlight=False, soft_wrap=True).print(table)


@with_options(At)
def unpin(
    name: Annotated[str, typer.Argument(help="Name of a reader, as `tailrace log pins` lists it.")],
    *,
    at: At,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    reason: Annotated[str, typer.Option(help="Why; recorded in audit.jsonl.")] = "",
    config: options.ConfigFile = None,
    log: options.LogPath = None,
) -> None:
    """Give up a reader: the log no longer keeps changes for it.

    A reader that still runs renews its pin within a second.

    \b
    Example:
      tailrace log unpin old-pipeline
    """
    from tailrace.console.operations import path_of

    system, path = at.system(config, log=log), path_of("log", "pins", name, "unpin")
    effect = system.effect(path, {"reason": reason})
    for line in (*effect.lines, effect.warning):
        typer.echo(line)
    if not yes:
        typer.confirm(f"Give up {name}?", abort=True)
    system.perform(path, {"reason": reason})
    typer.echo(f"{name} has no pin any more")
