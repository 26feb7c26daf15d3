"""`tailrace run`: all processes of a config file, supervised."""

# ruff: noqa: PLC0415 - psycopg is loaded when the command runs, not for --help

from __future__ import annotations

import os
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace import private
from tailrace.cli import options

if TYPE_CHECKING:
    from tailrace.config import Config

VARIABLES = (
    "TAILRACE_DSN",
    "TAILRACE_SLOT",
    "TAILRACE_PUBLICATION",
    "TAILRACE_LOG",
    "TAILRACE_INSECURE",
)


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
    insecure: options.Insecure = None,
) -> None:
    """Run capture, the pipelines and the HTTP endpoints, and restart them if they fail.

    Each of them is a separate process. A process that ends is restarted at once, the next time
    after 1 s, then 2 s, up to 30 s. A process that fails in a final state (GAP, SLOT_LOST,
    BAD_CONFIG ...) is not restarted: /status shows the state, and the other processes continue.
    Pipelines still deliver what the log holds. When no worker can continue, the command ends with
    the exit code of the first failure.

    With `replication.followers` and `takeover: auto`, a leader that another machine has deposed
    continues as `tailrace follow`.

    SIGHUP reloads the settings: added, removed and changed pipelines take effect, and each pipeline
    resumes at its checkpoint. Capture is not interrupted. A change that needs a restart of this
    command refuses the whole reload. `tailrace plan` shows it before, `tailrace apply` restarts
    only the processes that read what has changed.

    SIGTERM, Ctrl-C or `POST /shutdown` stops the processes in order: capture, pipelines, HTTP. No
    change is lost: captured changes are in the log, and every pipeline resumes at its checkpoint.
    POST requests need a token, which is in the file http.token of the data folder. The console is
    at the root of the HTTP endpoints: http://localhost:9090/

    \b
    Examples:
      tailrace run tailrace.yml
      kill -HUP PID
      curl localhost:9090/status
      curl -X POST -H "Authorization: Bearer $(cat DATA/http.token)" localhost:9090/shutdown
    """
    from tailrace.access.access import check_protection
    from tailrace.errors import LogFencedError
    from tailrace.observe import logs
    from tailrace.process import become
    from tailrace.replica.small_state import waiting
    from tailrace.run.processes import processes
    from tailrace.run.reloads import Reloads
    from tailrace.run.supervisor import supervise

    private.restrict_new_files()
    logs.configure()

    def check() -> Config:
        settings = options.settings(
            file, dsn=dsn, slot=slot, publication=publication, log=log, insecure=insecure
        )
        check_protection(settings.http)
        return settings

    settings = check()
    # Passed on in the environment: other users can read a command line, and the DSN may hold a
    # password.
    values = zip(VARIABLES, (dsn, slot, publication, log, insecure), strict=True)
    os.environ.update({name: str(value) for name, value in values if value is not None})
    keys = (("source", "dsn"), ("source", "slot"), ("source", "publication"))
    given = zip(
        (*keys, ("log", "path"), ("http", "insecure")),
        (dsn, slot, publication, log, insecure),
        strict=True,
    )
    overridden = tuple(key for key, value in given if value is not None)
    reloads = Reloads(file, settings.data, check, overridden=overridden)
    try:
        if settings.replication.followers:
            from tailrace.run.replicating import check_leads

            check_leads(settings)
        if waiting(settings.data):
            # This machine has followed until now: its pipelines continue where the leader's were.
            from tailrace.replica.adopt import adopt

            adopt(settings.data, settings.log.path)
        code = supervise(
            processes(settings, file), settings.data,
            settings=reloads, begin=lambda: reloads.begin(settings),
        )  # fmt: skip
    except LogFencedError:
        if settings.replication.takeover != "auto":
            raise
        code = LogFencedError.exit_code
    if code == LogFencedError.exit_code and settings.replication.takeover == "auto":
        # Another machine has taken over: follow it.
        become("follow", "-c", str(file))
    raise typer.Exit(code)
