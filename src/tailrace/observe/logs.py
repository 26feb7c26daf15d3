"""Log lines: structured events on stderr, readable on a terminal and JSON everywhere else."""

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
    """The level in TAILRACE_LOG_LEVEL: debug, info, warning or error; info by default."""
    name = os.environ.get("TAILRACE_LOG_LEVEL", "").upper()
    return logging.getLevelNamesMapping().get(name, logging.INFO)


def configure(format_: Format = "auto", *, verbose: bool = False) -> None:
    """Set up the log output of this process. Call it once, before anything logs."""
    as_json = format_ == "json" or (format_ == "auto" and not sys.stderr.isatty())
    renderer: Processor = (
        structlog.processors.JSONRenderer()
        if as_json
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
