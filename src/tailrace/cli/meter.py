"""What has arrived so far, in figures. Time is an argument: seconds since 1970."""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.change import Op

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.cli.arrival import Arrival

WINDOW_S = 10
HISTORY_S = 40
_RECENT = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """From commit to arrival, over the window."""

    p50_ms: float
    p99_ms: float


class Meter:
    """Counts everything; remembers the last seconds and the last changes."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, Op]] = Counter()
        """By table and operation. Logical messages are under their prefix."""
        self.recent: deque[Arrival] = deque(maxlen=_RECENT)
        """The last changes, newest first."""
        self._seconds: deque[list[int]] = deque(maxlen=HISTORY_S + 1)
        """A second and what arrived in it."""
        self._latencies: deque[tuple[float, float]] = deque()
        self._first_at = 0.0

    def note(self, arrival: Arrival) -> None:
        """Count one more."""
        at = arrival.received_at
        self._first_at = self._first_at or at
        self.counts[arrival.table, arrival.op] += 1
        self.recent.appendleft(arrival)
        self._latencies.append((at, arrival.latency_ms))
        self._forget(at)
        if not self._seconds or self._seconds[-1][0] < int(at):
            self._seconds.append([int(at), 0])
        self._seconds[-1][1] += 1

    def _forget(self, now: float) -> None:
        while self._latencies and self._latencies[0][0] < now - WINDOW_S:
            self._latencies.popleft()

    @property
    def received(self) -> int:
        """Everything, logical messages included."""
        return self.counts.total()

    @property
    def rows(self) -> int:
        """Changes of tables."""
        return sum(count for (_, op), count in self.counts.items() if op is not Op.MESSAGE)

    def per_second(self, now: float) -> float:
        """Changes a second, over the window or since the first one."""
        self._forget(now)
        return len(self._latencies) / min(max(now - self._first_at, 1), WINDOW_S)

    def history(self, now: float) -> tuple[int, ...]:
        """Changes in each of the last whole seconds, oldest first."""
        known = {second: count for second, count in self._seconds}
        last = int(now)
        return tuple(known.get(second, 0) for second in range(last - HISTORY_S, last))

    def latency(self, now: float) -> Latency | None:
        """Percentiles over the window; None if nothing arrived in it."""
        self._forget(now)
        values = sorted(latency for _, latency in self._latencies)
        if not values:
            return None
        return Latency(p50_ms=percentile(values, 50), p99_ms=percentile(values, 99))


def percentile(ordered: Sequence[float], percent: int) -> float:
    """The smallest value that so many percent of all do not exceed.

    >>> percentile([1, 2, 3, 4], 50), percentile([1, 2, 3, 4], 99), percentile([7], 50)
    (2, 4, 7)
    """
    return ordered[math.ceil(len(ordered) * percent / 100) - 1]
