"""`tailrace capture`: PostgreSQL into the durable log."""

# ruff: noqa: PLC0415 - psycopg and numpy are loaded when the command runs, not for --help

from __future__ import annotations

from typing import Annotated

import typer

from tailrace.cli import options


def capture(
    *,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="LSN",
            help="Stop in order once everything up to this LSN is durable and acknowledged.",
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
    """Stream every committed change into the log, and acknowledge what is durable.

    Needs the publication and the slot that `tailrace init` makes. Goes on where the log ends,
    through restarts of PostgreSQL and cut connections. SIGTERM or Ctrl-C stops it in order within
    five seconds.

    \b
    It stops by itself rather than lose a change; the exit code names the state:
      10 GAP          the slot is ahead of the log
      11 SLOT_LOST    the slot is gone or invalidated
      12 DIVERGED     the log and the server tell different histories
      13 DISK_FULL    no space for the next entry
      14 CORRUPT      the log is damaged
      15 FENCED       another capture holds this log
      20 UNREACHABLE  the first connection failed
      22 REFUSED      PostgreSQL says no; `tailrace doctor` says why

    \b
    Examples:
      tailrace capture --dsn "host=db dbname=shop user=tailrace" --log /var/lib/tailrace/log
      tailrace capture -c tailrace.yml --log-format json
    """
    from tailrace.errors import ConfigError
    from tailrace.observe import logs
    from tailrace.position import Lsn
    from tailrace.run.capturing import run_capture

    logs.configure(log_format, verbose=verbose)
    settings = options.settings(config, dsn=dsn, slot=slot, publication=publication, log=log)
    try:
        end = None if until is None else Lsn.parse(until)
    except ValueError as error:
        raise ConfigError(f"--until: {error}") from error
    run_capture(settings, until=end)
