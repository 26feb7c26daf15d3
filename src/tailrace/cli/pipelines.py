"""`tailrace pipelines`: the Spark application alone, as `tailrace run` starts it."""

# ruff: noqa: PLC0415 - Spark is loaded when the command runs, not for --help

from __future__ import annotations

from tailrace.cli import options


def pipelines(
    *,
    log_format: options.LogFormat = "auto",
    verbose: options.Verbose = False,
    config: options.ConfigFile = None,
    log: options.LogPath = None,
) -> None:
    """Run the pipelines of a settings file, from the log to their sinks.

    Capture may run beside it, elsewhere, or not at all: the pipelines read the log and wait for
    more. Each has a checkpoint of its own under the data folder and goes on where it was. SIGTERM
    or Ctrl-C stops them in order. `tailrace run` supervises this and capture together.

    \b
    Example:
      tailrace pipelines -c tailrace.yml
    """
    from tailrace.observe import logs
    from tailrace.run.pipelines import run_pipelines

    logs.configure(log_format, verbose=verbose)
    run_pipelines(options.settings(config, log=log))
