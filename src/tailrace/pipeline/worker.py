"""A Python worker of Spark's, made ready for a long life.

After every task a worker runs a full garbage collection. With Spark, Arrow and numpy loaded that
takes 40 ms, several times what a small micro-batch takes; what is loaded by then never goes away
and need not be looked at again.
"""

from __future__ import annotations

import gc
import os
from typing import Any

_settled = False
_BACKGROUND = "TAILRACE_BACKGROUND"
_NICE = 10


def freeze_gc() -> None:
    """Once a process: leave everything that is there out of later collections."""
    global _settled  # noqa: PLW0603
    if not _settled:
        _settled = True
        gc.collect()
        gc.freeze()


def in_background(function: Any) -> Any:
    """An Arrow function whose tasks have workers of their own, which may step back.

    Spark keeps workers apart by their environment, and the environment is the function's.
    """
    function._unwrapped._judf.func().envVars().put(_BACKGROUND, "1")
    return function


def lower_priority() -> None:
    """Leave the cores to whoever has less to do: changes go before snapshots."""
    if os.environ.pop(_BACKGROUND, None):
        os.nice(_NICE)
