"""The processes of `tailrace run`: capture, followers, the pipelines, and the HTTP endpoints.

`Roster` and `reads` also say what a change of the settings means: `tailrace.run.plan`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from tailrace.config.document import at
from tailrace.errors import AlreadyRunningError, ConfigError, LogFencedError
from tailrace.run.child import Spec

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.config import Config
    from tailrace.config.document import KeyPath

FIXED = frozenset({"capture"})
"""Processes that a reload does not restart: PostgreSQL would wait for an acknowledgement."""
RUN_READS = frozenset({("replication", "takeover")})
"""Keys that the supervisor itself reads when it starts."""
_READS: dict[str, tuple[KeyPath, ...]] = {
    "capture": (
        *(("source",), ("log",), ("capture",), ("data",)),
        *(("replication", key) for key in ("mode", "quorum", "visible")),
    ),
    "replicate": (("source",), ("log",), ("capture",), ("data",), ("replication",)),
    "pipelines": (
        *(("source",), ("log",), ("capture",), ("data",), ("replication",)),
        *(("spark",), ("pipelines",), ("telemetry",)),
    ),
}
"""What a process reads of the settings. The processes that are missing here read all of it.

Capture also reads where new pipelines start, for what the log has to keep until they have a pin. A
pipeline that a reload adds has its pin before its first batch. And it reads whether there are
followers, which a reload cannot change (`Roster`).
"""


def reads(process: str, path: KeyPath) -> bool:
    """Whether a process reads a key of the settings.

    >>> reads("capture", ("log", "codec")), reads("capture", ("http", "port"))
    (True, False)
    """
    known = _READS.get(process)
    return known is None or any(path[: len(each)] == each for each in known)


@dataclass(frozen=True, slots=True, kw_only=True)
class Roster:
    """Which processes the settings ask for. It is fixed when `tailrace run` starts."""

    replicated: bool
    pipelines: bool
    watched: bool

    @classmethod
    def of(cls, settings: dict[str, Any]) -> Self:
        """The roster of settings as a document."""
        return cls(
            replicated=bool(at(settings, ("replication", "followers"))),
            pipelines=bool(at(settings, ("pipelines",))),
            watched=bool(at(settings, ("alerts", "supervised"))),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The processes, in the order in which they start and stop."""
        given = {
            "capture": True, "replicate": self.replicated, "pipelines": self.pipelines,
            "serve": True, "watch": self.watched,
        }  # fmt: skip
        return tuple(name for name, there in given.items() if there)


def processes(config: Config, file: Path, *, metrics_lines: bool = False) -> list[Spec]:
    """The processes of a config, in the order in which they start and stop."""
    tailrace = (sys.executable, "-m", "tailrace.cli")
    settings = ("-c", str(file))
    replicated = bool(config.replication.followers)
    specs = [
        Spec(
            name="capture",
            command=(*tailrace, "capture", *settings),
            reloads="capture" not in FIXED,
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
    # A disk that fails is what it has to report, as soon as it can start.
    final = frozenset({ConfigError.exit_code, AlreadyRunningError.exit_code})
    return [Spec(name="watch", command=command, worker=False, stop_s=15.0, final=final)]


def _log_exists(path: Path) -> bool:
    from tailrace.postgres.bootstrap import log_exists  # noqa: PLC0415 - numpy, psycopg

    return log_exists(path)
