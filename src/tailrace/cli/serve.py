"""`tailrace serve`: the HTTP endpoints, as a process of `tailrace run`. Hidden in `--help`."""

# ruff: noqa: PLC0415 - starlette and psycopg are loaded when the command runs, not for --help

from __future__ import annotations

from typing import Annotated

import typer

from tailrace import private
from tailrace.cli import options


def serve(
    *,
    supervised: Annotated[
        bool, typer.Option("--supervised", help="POST /shutdown stops the parent process.")
    ] = False,
    metrics_lines: Annotated[
        bool, typer.Option("--metrics-lines", help="Print a METRICS line every 15 seconds.")
    ] = False,
    follower: Annotated[
        bool, typer.Option("--follower", help="Of a machine that follows a leader: no pipelines.")
    ] = False,
    config: options.ConfigFile = None,
    dsn: options.Dsn = None,
    slot: options.Slot = None,
    publication: options.Publication = None,
    log: options.LogPath = None,
    insecure: options.Insecure = None,
) -> None:
    """Serve the HTTP endpoints, and monitor the WAL that PostgreSQL keeps for the slot.

    `tailrace run` starts this process beside capture and the pipelines. It shows the figures that
    they write to their status files.

    \b
    Example:
      tailrace serve -c tailrace.yml
      curl localhost:9090/status
    """
    from tailrace.console.console import Console
    from tailrace.observe import logs
    from tailrace.run.serving import run_serve

    private.restrict_new_files()
    logs.configure()
    settings = options.settings(
        config, dsn=dsn, slot=slot, publication=publication, log=log, insecure=insecure
    )
    if follower:
        replication = settings.replication.model_copy(update={"followers": ()})
        settings = settings.model_copy(update={"pipelines": {}, "replication": replication})
    run_serve(settings, supervised=supervised, metrics_lines=metrics_lines, console=Console)
