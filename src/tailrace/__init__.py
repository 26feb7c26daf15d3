"""Tailrace: every committed change of a PostgreSQL database, streamed to where it is needed.

The names below are what users import; they load on first use, so the command line starts quickly.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace.change import Change, Op
    from tailrace.errors import TailraceError
    from tailrace.log.changes import read_changes
    from tailrace.log.reader import AtLsn, AtTime, Earliest, Latest, Log
    from tailrace.pipeline.facade import register, session
    from tailrace.position import Lsn, Position

__version__ = "0.1.0"

__all__ = [
    "AtLsn",
    "AtTime",
    "Change",
    "Earliest",
    "Latest",
    "Log",
    "Lsn",
    "Op",
    "Position",
    "TailraceError",
    "read_changes",
    "register",
    "session",
]

_HOMES = {
    "tailrace.change": ("Change", "Op"),
    "tailrace.errors": ("TailraceError",),
    "tailrace.log.changes": ("read_changes",),
    "tailrace.log.reader": ("AtLsn", "AtTime", "Earliest", "Latest", "Log"),
    "tailrace.pipeline.facade": ("register", "session"),
    "tailrace.position": ("Lsn", "Position"),
}


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'tailrace' has no attribute {name!r}")
