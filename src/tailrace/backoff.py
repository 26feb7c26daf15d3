"""Back-off: how long a retry loop waits between attempts.

One class for every retry loop. Delays double from `first_s` to `max_s` and are jittered, so that
processes that failed together do not retry together. The clock and the random numbers are
arguments, so a loop can be tested without waiting.

>>> backoff = Backoff(first_s=1.0, max_s=5.0, jitter=0.0)
>>> [backoff.next_s() for _ in range(4)]
[1.0, 2.0, 4.0, 5.0]
>>> backoff.reset()
>>> backoff.next_s()
1.0
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_DOUBLINGS = 30


class Backoff:
    """The delays of one retry loop.

    The loop calls `next_s` after a failure and waits that long. It calls `reset` after progress. A
    loop that cannot tell progress calls `running` when an attempt works: an attempt that then runs
    for longer than `max_s` counts as progress. With `at_once`, the first retry does not wait.
    """

    def __init__(
        self,
        *,
        first_s: float = 0.5,
        max_s: float = 20.0,
        jitter: float = 0.2,
        at_once: bool = False,
        clock: Callable[[], float] = time.monotonic,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._first_s = first_s
        self._max_s = max_s
        self._jitter = jitter
        self._at_once = at_once
        self._clock = clock
        self._uniform = uniform
        self._running_since: float | None = None
        self.failures = 0
        """Failures in a row."""

    def running(self) -> None:
        """Note that an attempt works now."""
        self._running_since = self._clock()

    def reset(self) -> None:
        """Forget the failures: the next delay is the first one."""
        self.failures = 0
        self._running_since = None

    def next_s(self) -> float:
        """Note a failure; how many seconds to wait before the next attempt."""
        since = self._running_since
        if since is not None and self._clock() - since > self._max_s:
            self.reset()
        self._running_since = None
        self.failures += 1
        if self._at_once and self.failures == 1:
            return 0.0
        doublings = min(self.failures - 1 - self._at_once, _MAX_DOUBLINGS)
        delay_s = min(self._first_s * 2.0**doublings, self._max_s)
        return delay_s * self._uniform(1 - self._jitter, 1 + self._jitter)
