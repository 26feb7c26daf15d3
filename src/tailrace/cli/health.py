"""`tailrace health`: the health checks of the watchdog."""

# ruff: noqa: PLC0415 - loaded when the command runs, not for --help

from __future__ import annotations

import json
from typing import Annotated

import typer

from tailrace.cli import options

_STYLES = {"error": "bold red", "warning": "yellow", "healthy": "green"}


def health(
    *,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the checks as JSON, as GET /health/checks does.")
    ] = False,
    show_all: Annotated[
        bool, typer.Option("--all", help="Also show the checks that are healthy.")
    ] = False,
    config: options.ConfigFile = None,
) -> None:
    """Show the health checks of a running system, as its watchdog sees them.

    \b
    Exit codes:
      0  no check has the state error
      1  at least one has, or the watchdog does not run

    \b
    Examples:
      tailrace health
      tailrace health --json | jq '.checks[] | select(.state == "error")'
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from tailrace.run.health import health_document
    from tailrace.watch.result import Key

    document = health_document(options.settings(config), history=20)
    if as_json:
        typer.echo(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        console = Console(highlight=False)
        shown = [each for each in document["checks"] if show_all or each["state"] != "healthy"]
        table = Table(show_header=False)
        for each in shown:
            cell = Text(each["summary"])
            if each["hint"]:
                cell.append(f"\n{each['hint']}", style="dim")
            name = str(Key(each["check"], each["subject"]))
            table.add_row(Text(each["state"], style=_STYLES.get(each["state"], "")), name, cell)
        if shown:
            console.print(table)
        healthy = sum(each["state"] == "healthy" for each in document["checks"])
        console.print(f"{document['state']}: {healthy} of {len(document['checks'])} checks healthy")
    if document["state"] in ("error", "down"):
        raise typer.Exit(1)
