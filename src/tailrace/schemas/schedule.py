"""How often a thread reads the catalogs: every few seconds, and never more than 5 % of the time.

A read takes 0.5 ms per table, so with thousands of tables a fixed interval would keep the source
busy.
"""

from __future__ import annotations

import contextlib
import math
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

INTERVAL_S = 5.0
_IDLE_FACTOR = 20


class CatalogSchedule:
    """When the next read is due. The first one is due at once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due_s = -math.inf

    def due(self) -> bool:
        """Whether a read is due now."""
        return self._clock() >= self._due_s

    def wait_s(self) -> float:
        """Seconds until the next read is due."""
        return max(0.0, self._due_s - self._clock())

    def request(self) -> None:
        """Make a read due now."""
        self._due_s = -math.inf

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Time a read, and set when the next one is due, also if this one fails."""
        began = self._clock()
        # Set before the read: a request that arrives during it must not be overwritten.
        self._due_s = due_s = began + INTERVAL_S
        try:
            yield
        finally:
            if self._due_s == due_s:
                elapsed_s = self._clock() - began
                self._due_s = began + max(INTERVAL_S, _IDLE_FACTOR * elapsed_s)
