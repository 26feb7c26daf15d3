"""`tailrace reset`: begin again at another position of the log."""

# ruff: noqa: PLC0415 - heavy modules are loaded when the command runs, not for --help

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tailrace import private
from tailrace.cli import options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.pipeline.reset import Plan


def reset(
    pipeline: Annotated[str, typer.Argument(help="Name of a pipeline in the settings file.")],
    *,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="POSITION",
            help="earliest, now, an LSN such as 16/B374D848, or a time such as "
            "2026-01-31T12:00:00Z.",
        ),
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    config: options.ConfigFile = None,
    log: options.LogPath = None,
) -> None:
    """Deliver changes again, skip changes, or continue with another log after DIVERGED.

    Shows what is delivered again or skipped, and asks. The pipelines must not run. The data folder
    records who has reset which pipeline, in resets.json. Backfills that are not finished begin
    again.

    \b
    Examples:
      tailrace reset shop --from earliest
      tailrace reset shop --from 16/B374D848
      tailrace reset shop --from now --yes
    """
    from datetime import UTC, datetime

    from tailrace.log.start import parse_start
    from tailrace.pipeline.reset import plan
    from tailrace.run.reset import carry_out

    private.restrict_new_files()
    settings = options.settings(config, log=log)
    planned = plan(settings, pipeline, parse_start("latest" if start == "now" else start))
    for line in _lines(planned):
        typer.echo(line)
    if not yes:
        typer.confirm(f"Reset {pipeline}?", abort=True)
    carry_out(settings, planned, now=datetime.now(UTC))
    typer.echo(f"{pipeline} starts after {planned.after.position}.")


def _lines(planned: Plan) -> Iterator[str]:
    name, position = planned.pipeline, planned.after.position
    if planned.before is None:
        yield f"{name} has delivered nothing yet."
    elif planned.delivered is None:
        yield (
            f"The checkpoint of {name} belongs to another log. What was delivered from that log "
            "stays in the sink. Changes that only that log held are not delivered: compare the "
            "sink with the source, or run a backfill."
        )
    else:
        yield f"{name} has delivered everything up to {planned.delivered}."
    if planned.repeated:
        yield f"{planned.repeated:,} changes after {position} are delivered again."
    if planned.skipped:
        yield f"{planned.skipped:,} changes up to {position} are not delivered."
    yield f"The log holds {planned.ahead:,} changes after {position}."
