"""`tailrace doctor`: check the source database and show the fix for each problem."""

# ruff: noqa: PLC0415 - psycopg is loaded when the command runs, not for --help

from __future__ import annotations

import json
from typing import Annotated

import typer

from tailrace.cli import options
from tailrace.cli.findings import show
from tailrace.finding import finding_document


def doctor(
    *,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the findings as JSON, with the passed checks.")
    ] = False,
    show_all: Annotated[
        bool, typer.Option("--all", help="Also show the checks that passed.")
    ] = False,
    config: options.ConfigFile = None,
    dsn: options.Dsn = None,
    slot: options.Slot = None,
    publication: options.Publication = None,
    log: options.LogPath = None,
) -> None:
    """Check the source database and show the fix for each problem.

    Changes nothing. Checks the server's settings, the role, the connection, the publication, every
    published table, the slot and open transactions. An error prevents capture from working or
    breaks writes of the application; a warning does not. The names of the checks are stable, so
    scripts can use them.

    \b
    Exit codes:
      0   no errors; warnings are allowed
      1   at least one error
      20  the server does not respond
      22  the server refuses the connection

    \b
    Examples:
      Check the source of tailrace.yml in the current folder:
        tailrace doctor
      Check a database without a settings file:
        tailrace doctor --dsn "postgresql://tailrace@db/shop?sslmode=verify-full"
      Print the SQL that fixes the errors:
        tailrace doctor --json | jq -r '.findings[] | select(.severity == "error") | .fix'
    """
    from tailrace.postgres.connection import connect
    from tailrace.postgres.preflight import Severity, run

    settings = options.settings(config, dsn=dsn, slot=slot, publication=publication, log=log)
    with connect(
        settings.source.dsn.get_secret_value(),
        connect_timeout_s=settings.capture.connect_timeout_s,
    ) as connection:
        findings = run(connection, settings)
    healthy = all(finding.severity is not Severity.ERROR for finding in findings)
    if as_json:
        report = {"healthy": healthy, "findings": [finding_document(each) for each in findings]}
        typer.echo(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        show(findings, show_all=show_all)
    if not healthy:
        raise typer.Exit(1)
