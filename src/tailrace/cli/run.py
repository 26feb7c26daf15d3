"""`tailrace run`: everything a config file names, supervised."""

# ruff: noqa: PLC0415 - psycopg is loaded when the command runs, not for --help

from __future__ import annotations

import os
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import Annotated

import typer

from tailrace.cli import options

VARIABLES = ("TAILRACE_DSN", "TAILRACE_SLOT", "TAILRACE_PUBLICATION", "TAILRACE_LOG")


def run(
    file: Annotated[
        Path,
        typer.Argument(envvar="TAILRACE_CONFIG", help="Settings file.", show_default=True),
    ] = options.DEFAULT_FILE,
    *,
    dsn: options.Dsn = None,
    slot: options.Slot = None,
    publication: options.Publication = None,
    log: options.LogPath = None,
) -> None:
    """Run capture, the pipelines and the HTTP endpoints, and keep them up.

    Each is a process of its own. One that dies is started again, after 1 s and then ever later, up
    to 30 s. One that stops in a state that cannot mend by itself (GAP, DISK_FULL, BAD_CONFIG ...)
    stays down and is shown in /status, while the others go on: pipelines still deliver what the
    log holds. When none can go on, the exit code is that of the first.

    SIGHUP has the settings read again: pipelines that came, went or changed are so a moment later,
    each where it was; capture is not interrupted.

    SIGTERM, Ctrl-C or `POST /shutdown` stops all in order: capture, pipelines, HTTP. Nothing is
    lost: what was captured is in the log, and every pipeline goes on where it was.

    \b
    Examples:
      tailrace run tailrace.yml
      kill -HUP PID
      curl localhost:9090/status
      curl -X POST localhost:9090/shutdown
    """
    from tailrace.observe import logs
    from tailrace.run.processes import processes
    from tailrace.run.supervisor import supervise

    logs.configure()
    settings = options.settings(file, dsn=dsn, slot=slot, publication=publication, log=log)
    # To the processes by environment: everybody may read a command line.
    given = zip(VARIABLES, (dsn, slot, publication, log), strict=True)
    os.environ.update({name: str(value) for name, value in given if value is not None})

    def check() -> object:
        return options.settings(file, dsn=dsn, slot=slot, publication=publication, log=log)

    raise typer.Exit(supervise(processes(settings, file), settings.data, check=check))
