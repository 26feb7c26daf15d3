"""`tailrace check`: checks the pipelines of a settings file against the database."""

# ruff: noqa: PLC0415 - psycopg and Spark are loaded when the command runs, not for --help

from __future__ import annotations

import json
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli import findings, options
from tailrace.finding import finding_document

if TYPE_CHECKING:
    from tailrace.pipeline.check import Report


def check(
    file: Annotated[
        Path | None,
        typer.Argument(
            envvar="TAILRACE_CONFIG",
            help="Settings file. Default: tailrace.yml in the current folder.",
        ),
    ] = None,
    *,
    spark: Annotated[
        bool,
        typer.Option(
            "--spark/--no-spark",
            help="Analyse expressions with Spark (slower).",
        ),
    ] = True,
    sinks: Annotated[
        bool, typer.Option("--sinks/--no-sinks", help="Connect to the sinks and check them too.")
    ] = True,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print tables, types and findings as JSON.")
    ] = False,
    show_all: Annotated[
        bool, typer.Option("--all", help="Show the checks that passed too.")
    ] = False,
    dsn: options.Dsn = None,
    publication: options.Publication = None,
) -> None:
    """Check the pipelines: tables, SQL expressions, destinations, sinks.

    Changes nothing. Every expression is parsed, resolved against the columns of every table of its
    pipeline, and analysed by Spark. `tailrace doctor` checks the source itself.

    Exit code: 0 without errors (warnings are allowed), 1 with an error, 2 if the settings are
    invalid, 20 if the database is unreachable, 22 if it refuses the connection.

    \b
    Examples:
      tailrace check
      tailrace check tailrace.yml --no-spark
      tailrace check --json | jq '.findings[] | select(.severity == "error")'
    """
    from tailrace.pipeline.check import check as run

    settings = options.settings(file, dsn=dsn, publication=publication)
    report = run(settings, spark=spark, sinks=sinks)
    if as_json:
        content = _document(report)
        typer.echo(json.dumps(content, indent=2, ensure_ascii=False))
    else:
        for name, tables in report.tables.items():
            typer.echo(f"{name}: {len(tables)} table{'s' * (len(tables) != 1)}")
        findings.show(report.findings, show_all=show_all)
    if not report.healthy:
        raise typer.Exit(1)


def _document(report: Report) -> dict[str, object]:
    pipelines = {
        name: {"tables": tables, "types": report.types[name]}
        for name, tables in report.tables.items()
    }
    return {
        "healthy": report.healthy,
        "pipelines": pipelines,
        "findings": [finding_document(each) for each in report.findings],
    }
