"""A Python worker of Spark's, made ready for a long life.

After every task a worker runs a full garbage collection. With Spark, Arrow and numpy loaded that
takes 40 ms, several times what a small micro-batch takes; what is loaded by then never goes away
and need not be looked at again.
"""

from __future__ import annotations

import gc

_settled = False


def settle() -> None:
    """Once a process: leave everything that is there out of later collections."""
    global _settled  # noqa: PLW0603
    if not _settled:
        _settled = True
        gc.collect()
        gc.freeze()
