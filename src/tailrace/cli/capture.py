"""`tailrace capture`: capture the changes of a PostgreSQL database into the log."""

# ruff: noqa: PLC0415 - psycopg and numpy are loaded when the command runs, not for --help

from __future__ import annotations

from typing import Annotated

import typer

from tailrace import private
from tailrace.cli import options


def capture(
    *,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="LSN",
            help="Stop when everything up to this LSN is durable and acknowledged.",
        ),
    ] = None,
    log_format: options.LogFormat = "auto",
    verbose: options.Verbose = False,
    config: options.ConfigFile = None,
    dsn: options.Dsn = None,
    slot: options.Slot = None,
    publication: options.Publication = None,
    log: options.LogPath = None,
) -> None:
    """Stream every committed change into the log and acknowledge it once it is durable.

    Needs the publication and the slot that `tailrace init` creates. Capture resumes where the log
    ends. It reconnects after a restart of PostgreSQL or a lost connection. SIGTERM or Ctrl-C stops
    it within five seconds, with all received transactions durable. `tailrace run` starts capture
    together with the pipelines.

    \b
    Capture stops rather than lose a change. Exit codes:
      10 GAP          the slot is ahead of the log
      11 SLOT_LOST    the slot is missing or invalidated
      12 DIVERGED     the log and the server have different histories
      13 DISK_FULL    no space for the next entry
      14 CORRUPT      the log is damaged
      15 FENCED       another capture appends to this log, or another machine has taken it over
      20 UNREACHABLE  the first connection failed
      22 REFUSED      PostgreSQL refused; run `tailrace doctor` for the reason

    \b
    Examples:
      Capture without a settings file:
        tailrace capture --dsn "host=db dbname=shop user=tailrace" --log /var/lib/tailrace/log
      Capture with a settings file and JSON logs:
        tailrace capture -c tailrace.yml --log-format json
    """
    from tailrace.errors import ConfigError
    from tailrace.observe import logs
    from tailrace.position import Lsn
    from tailrace.run.capturing import run_capture

    private.restrict_new_files()
    logs.configure(log_format, verbose=verbose)
    settings = options.settings(config, dsn=dsn, slot=slot, publication=publication, log=log)
    try:
        end = None if until is None else Lsn.parse(until)
    except ValueError as error:
        raise ConfigError(f"--until: {error}") from error
    run_capture(settings, until=end)
