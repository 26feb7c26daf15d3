"""`tailrace pipelines`: the Spark application, as `tailrace run` starts it."""

# ruff: noqa: PLC0415 - Spark is loaded when the command runs, not for --help

from __future__ import annotations

from tailrace import private
from tailrace.cli import options


def pipelines(
    *,
    log_format: options.LogFormat = "auto",
    verbose: options.Verbose = False,
    config: options.ConfigFile = None,
    log: options.LogPath = None,
) -> None:
    """Run the pipelines of a settings file, from the log to their sinks.

    The pipelines read the log and wait for more; capture may run beside them, on another host, or
    not at all. Each pipeline has a checkpoint in the data folder and resumes there after a restart.
    SIGTERM or Ctrl-C stops them: an open micro-batch is closed in order, another one is replayed
    after the next start. `tailrace run` supervises this process and capture together.

    \b
    Example:
      tailrace pipelines -c tailrace.yml
    """
    from tailrace.observe import logs
    from tailrace.run.pipelines import run_pipelines

    private.restrict_new_files()
    logs.configure(log_format, verbose=verbose)
    run_pipelines(options.settings(config, log=log))
