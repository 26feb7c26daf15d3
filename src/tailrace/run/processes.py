"""The processes of `tailrace run`: capture, followers, the pipelines, and the HTTP endpoints."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tailrace.errors import LogFencedError
from tailrace.run.child import Spec

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.config import Config


def processes(config: Config, file: Path, *, metrics_lines: bool = False) -> list[Spec]:
    """The processes of a config, in the order in which they start and stop."""
    tailrace = (sys.executable, "-m", "tailrace.cli")
    settings = ("-c", str(file))
    replicated = bool(config.replication.followers)
    specs = [
        Spec(
            name="capture",
            command=(*tailrace, "capture", *settings),
            reloads=False,
            ends_all=frozenset({LogFencedError.exit_code}) if replicated else frozenset(),
        )
    ]
    if replicated:
        # Not a worker: without capture there is nothing new to send.
        command = (*tailrace, "replicate", *settings)
        specs.append(Spec(name="replicate", command=command, worker=False))
    if config.pipelines:
        specs.append(
            Spec(
                name="pipelines",
                command=(*tailrace, "pipelines", *settings),
                # An open micro-batch is closed in order; a closed one is cancelled and replayed.
                stop_s=30.0,
                # Capture creates the log when it reaches PostgreSQL for the first time. Spark
                # starts meanwhile.
                idle=lambda: not _log_exists(config.log.path),
            )
        )
    extra = ("--metrics-lines",) if metrics_lines else ()
    command = (*tailrace, "serve", *settings, "--supervised", *extra)
    specs.append(Spec(name="serve", command=command, worker=False, stop_s=5.0))
    return [*specs, *_watchdog(config, file)]


def follower_processes(config: Config, file: Path) -> list[Spec]:
    """The processes of a machine that follows a leader."""
    tailrace = (sys.executable, "-m", "tailrace.cli")
    settings = ("-c", str(file))
    return [
        Spec(name="follow", command=(*tailrace, "follow", *settings, "--alone"), reloads=False),
        Spec(
            name="serve",
            command=(*tailrace, "serve", *settings, "--supervised", "--follower"),
            worker=False,
            stop_s=5.0,
        ),
        *_watchdog(config, file, "--follower"),
    ]


def _watchdog(config: Config, file: Path, *options: str) -> list[Spec]:
    """Stopped last: it delivers what the end of the others has to say."""
    if config.alerts is None or not config.alerts.supervised:
        return []
    command = (sys.executable, "-m", "tailrace.cli", "watch", "-c", str(file), *options)
    return [Spec(name="watch", command=command, worker=False, stop_s=15.0)]


def _log_exists(path: Path) -> bool:
    from tailrace.postgres.bootstrap import log_exists  # noqa: PLC0415 - numpy, psycopg

    return log_exists(path)
