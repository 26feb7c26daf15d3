"""`tailrace doctor`: what is wrong with the source, and the exact way to put it right."""

# ruff: noqa: PLC0415 - psycopg is loaded when the command runs, not for --help

from __future__ import annotations

import json
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tailrace.cli import options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.capture.preflight import Finding

_STYLES = {"error": "bold red", "warning": "yellow", "info": "cyan", "ok": "green"}


def doctor(
    *,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the findings as JSON, passed checks included.")
    ] = False,
    show_all: Annotated[
        bool, typer.Option("--all", help="Show the checks that passed as well.")
    ] = False,
    config: options.ConfigFile = None,
    dsn: options.Dsn = None,
    slot: options.Slot = None,
    publication: options.Publication = None,
    log: options.LogPath = None,
) -> None:
    """Check the source database and say how to put right what is wrong.

    Changes nothing. Looks at the server's settings, the role, the line, the publication, every
    published table, the slot and open transactions. The names of the checks are stable.

    Exit code: 0 without errors (warnings are allowed), 1 with any error, 20 when the server does
    not answer, 22 when it refuses the connection.

    \b
    Examples:
      tailrace doctor
      tailrace doctor --dsn "postgresql://tailrace@db/shop?sslmode=verify-full"
      tailrace doctor --json | jq '.findings[] | select(.severity == "error") | .fix'
    """
    from tailrace.capture.connection import connect
    from tailrace.capture.preflight import Severity, run

    settings = options.settings(config, dsn=dsn, slot=slot, publication=publication, log=log)
    with connect(
        settings.source.dsn.get_secret_value(),
        connect_timeout_s=settings.capture.connect_timeout_s,
    ) as connection:
        findings = run(connection, settings)
    if as_json:
        typer.echo(_json(findings))
    else:
        _show(findings, show_all=show_all)
    if any(finding.severity is Severity.ERROR for finding in findings):
        raise typer.Exit(1)


def _json(findings: Sequence[Finding]) -> str:
    rows = [
        {
            "check": finding.check,
            "severity": finding.severity.value,
            "subject": finding.subject,
            "finding": finding.finding,
            "fix": finding.fix,
        }
        for finding in findings
    ]
    healthy = all(row["severity"] != "error" for row in rows)
    return json.dumps({"healthy": healthy, "findings": rows}, indent=2, ensure_ascii=False)


def _show(findings: Sequence[Finding], *, show_all: bool) -> None:
    console = Console(highlight=False, soft_wrap=False)
    counts: dict[str, int] = {}
    for severity, group in groupby(findings, key=lambda finding: finding.severity.value):
        rows = list(group)
        counts[severity] = len(rows)
        if severity != "ok" or show_all:
            console.print(_table(severity, rows))
    words = [f"{count} {severity}" for severity, count in counts.items()]
    console.print(Text(", ".join(words)))


def _table(severity: str, rows: Sequence[Finding]) -> Table:
    table = Table(
        title=Text(severity, style=_STYLES[severity]), title_justify="left", show_header=False
    )
    table.add_column("check", no_wrap=True, style=_STYLES[severity])
    table.add_column("finding", overflow="fold")
    for finding in rows:
        # Names and values come from the database: Text, so that none of it is read as markup.
        cell = Text(f"{finding.subject}: " if finding.subject else "", style="bold")
        cell.append(Text(finding.finding, style="not bold"))
        if finding.fix:
            cell.append(Text(f"\nfix: {finding.fix}", style="not bold dim"))
        table.add_row(Text(finding.check), cell)
    return table
