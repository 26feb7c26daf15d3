"""Waiting for what happens elsewhere, without waiting for ever."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
LONG_S = 400
"""Far more than anything takes: machines that are busy with other work stall for minutes."""
_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.1


def wait_for(
    condition: Callable[[], T | None],
    what: str | Callable[[], object] = "",
    timeout_s: float = LONG_S,
) -> T:
    """What it returns once that is true; a test that waits too long fails and says for what.

    A function for `what` is asked at the end, for example for the output of a process. Pauses grow
    with the wait: a condition may cost a connection, and what it waits for needs the core.
    """
    start = time.monotonic()
    while not (found := condition()):
        waited = time.monotonic() - start
        if waited >= timeout_s:
            raise AssertionError(f"still waiting for {what() if callable(what) else what}")
        time.sleep(min(max(waited / 20, _PAUSE_S), _LONGEST_PAUSE_S))
    return found


def holds(condition: Callable[[], object], seconds: float, what: str = "") -> None:
    """Fail if it ceases to hold within so many seconds: for what must not happen."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert condition(), f"no longer: {what or condition}"
        time.sleep(_PAUSE_S)
