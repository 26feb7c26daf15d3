"""`tailrace replicate`: the sender of a leader, as a process of `tailrace run`. Hidden."""

# ruff: noqa: PLC0415 - loaded when the command runs, not for --help

from __future__ import annotations

from tailrace import private
from tailrace.cli import options


def replicate(
    *,
    log_format: options.LogFormat = "auto",
    verbose: options.Verbose = False,
    config: options.ConfigFile = None,
    log: options.LogPath = None,
) -> None:
    """Send the log to the followers of the settings.

    `tailrace run` starts this process when `replication.followers` names any. It only reads the
    log: capture and the pipelines go on when it ends, and it continues where the followers are.

    \b
    Example:
      tailrace replicate -c tailrace.yml
    """
    from tailrace.observe import logs
    from tailrace.run.replicating import run_leader

    private.restrict_new_files()
    logs.configure(log_format, verbose=verbose)
    run_leader(options.settings(config, log=log))
