"""`tailrace run`: everything a config file names, supervised."""

# ruff: noqa: PLC0415 - psycopg is loaded when the command runs, not for --help

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tailrace.cli import options


def run(
    file: Annotated[
        Path,
        typer.Argument(envvar="TAILRACE_CONFIG", help="Settings file.", show_default=True),
    ] = options.DEFAULT_FILE,
) -> None:
    """Run capture, the pipelines and the HTTP endpoints, and keep them up.

    Each is a process of its own. One that dies is started again, after 1 s and then ever later, up
    to 30 s. One that stops in a state that cannot mend by itself (GAP, DISK_FULL, BAD_CONFIG ...)
    stays down and is shown in /status, while the others go on: pipelines still deliver what the
    log holds. When none can go on, the exit code is that of the first.

    SIGTERM, Ctrl-C or `POST /shutdown` stops all in order: capture, pipelines, HTTP. Nothing is
    lost: what was captured is in the log, and every pipeline goes on where it was.

    \b
    Examples:
      tailrace run tailrace.yml
      curl localhost:9090/status
      curl -X POST localhost:9090/shutdown
    """
    from tailrace.engine.supervisor import processes, supervise
    from tailrace.observe import logs

    logs.configure()
    settings = options.settings(file)
    raise typer.Exit(supervise(processes(settings, file), settings.data))
