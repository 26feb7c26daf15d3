"""Python workers of Spark, tuned for a long life.

Spark's workers run a full garbage collection after every task. With Spark, Arrow and numpy loaded
that takes 40 ms, several times as long as a small micro-batch. Modules that are loaded by then are
never unloaded, so `freeze_gc` excludes them from later collections. Workers of `daemon` have little
left to exclude; those of a session that a user has built have everything.
"""

from __future__ import annotations

import gc
import os
from typing import Any

_frozen = False
BACKGROUND = "TAILRACE_BACKGROUND"
"""The variable that marks the workers of `in_background`."""
_NICE = 10


def freeze_gc() -> None:
    """Exclude all present objects from later collections, once per process."""
    global _frozen  # noqa: PLW0603
    if not _frozen:
        _frozen = True
        gc.collect()
        gc.freeze()


def in_background(function: Any) -> Any:
    """Run an Arrow function in workers of its own, which may lower their priority.

    Spark shares workers between functions with the same environment, so the function gets an
    environment variable of its own.
    """
    function._unwrapped._judf.func().envVars().put(BACKGROUND, "1")
    return function


def lower_priority() -> None:
    """Raise the nice value of a worker of `in_background`: changes go before snapshots."""
    if os.environ.pop(BACKGROUND, None):
        os.nice(_NICE)
