"""How long the runs of `make soak` are."""

from __future__ import annotations

import os


def rounds(every: int = 1) -> int:
    """One round for every so many of LOOPS: a kill of capture takes a second or two, other faults
    take up to a minute or two."""
    return max(1, int(os.environ.get("TAILRACE_LOOPS", "40")) // every)
