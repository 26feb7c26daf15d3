"""`tailrace follow`: keep a copy of another machine's log."""

# ruff: noqa: PLC0415 - loaded when the command runs, not for --help

from __future__ import annotations

import os
from typing import Annotated

import typer

from tailrace import private
from tailrace.cli import options
from tailrace.config import Replication


def follow(
    *,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            envvar="TAILRACE_LISTEN",
            help=Replication.model_fields["listen"].description,
        ),
    ] = None,
    alone: Annotated[
        bool, typer.Option("--alone", help="Without the HTTP endpoints and their supervisor.")
    ] = False,
    log_format: options.LogFormat = "auto",
    verbose: options.Verbose = False,
    config: options.ConfigFile = None,
    log: options.LogPath = None,
) -> None:
    """Follow a leader: listen for it, and keep a byte-for-byte copy of its log.

    The leader is a machine with `tailrace run` whose settings name this one in
    `replication.followers`. Everything that reads a log works on the copy: `tailrace tail`,
    pipelines, mirrors, PySpark. A copy that was away continues where it ends. Beyond this machine
    the connection needs `replication.tls` or `replication.key`, the same on both sides.

    With a settings file, /health, /ready, /status and /metrics are served beside it, and the
    process is restarted if it fails.

    With `takeover: auto` it takes over when the leader is lost, and continues as `tailrace run`.

    SIGTERM or Ctrl-C stops it. What it has acknowledged is on its disk.

    \b
    Exit codes:
      15 FENCED   another process writes this log
      42 LEADING  with --alone: this machine has taken over

    \b
    Examples:
      On this machine, to try it:
        tailrace follow --listen 127.0.0.1:7432 --log copy/log
      With a settings file, endpoints included:
        tailrace follow -c tailrace.yml
    """
    from tailrace.config.replication import host_and_port
    from tailrace.errors import ConfigError, LeadingError
    from tailrace.observe import logs
    from tailrace.process import become
    from tailrace.run.processes import follower_processes
    from tailrace.run.replicating import run_follower
    from tailrace.run.supervisor import supervise

    private.restrict_new_files()
    logs.configure(log_format, verbose=verbose)
    settings = options.settings(config, log=log)
    if listen is not None:
        try:
            host_and_port(listen)
        except ValueError as error:
            raise ConfigError(f"--listen: {error}") from error
        replication = settings.replication.model_copy(update={"listen": listen})
        settings = settings.model_copy(update={"replication": replication})
    file = config or (options.DEFAULT_FILE if options.DEFAULT_FILE.exists() else None)
    if file is None or alone:
        run_follower(settings)
        return
    # Passed on in the environment: the processes read the file themselves.
    given = {"TAILRACE_LISTEN": listen, "TAILRACE_LOG": log}
    os.environ.update({name: str(value) for name, value in given.items() if value is not None})
    code = supervise(follower_processes(settings, file), settings.data)
    if code == LeadingError.exit_code:
        become("run", str(file))
    raise typer.Exit(code)
