"""`tailrace doctor`: what is wrong with the source, and the exact way to put it right."""

# ruff: noqa: PLC0415 - psycopg is loaded when the command runs, not for --help

from __future__ import annotations

import json
from typing import Annotated

import typer

from tailrace.cli import options
from tailrace.cli.findings import rows, show


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
        report = {"healthy": healthy, "findings": rows(findings)}
        typer.echo(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        show(findings, show_all=show_all)
    if not healthy:
        raise typer.Exit(1)
