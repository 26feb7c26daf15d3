"""Log lines: structured events on stderr, for people on a terminal and as JSON everywhere else."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Literal

import structlog

if TYPE_CHECKING:
    from structlog.typing import Processor

Format = Literal["auto", "console", "json"]


def _level() -> int:
    """What the environment asks for: debug, info, warning or error."""
    wanted = os.environ.get("TAILRACE_LOG_LEVEL", "").upper()
    return logging.getLevelNamesMapping().get(wanted, logging.INFO)


def configure(format_: Format = "auto", *, verbose: bool = False) -> None:
    """Set the process's log output up; call once, first thing."""
    plain = format_ == "json" or (format_ == "auto" and not sys.stderr.isatty())
    renderer: Processor = (
        structlog.processors.JSONRenderer()
        if plain
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG if verbose else _level()),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
