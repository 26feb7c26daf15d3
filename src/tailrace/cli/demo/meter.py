"""Counts, rates and latencies of received changes. Time is an argument: seconds since 1970."""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.change import Op

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.cli.demo.arrival import Arrival

WINDOW_S = 10
HISTORY_S = 40
_RECENT = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """From commit to reception, over the window."""

    p50_ms: float
    p99_ms: float


class Meter:
    """Counts all changes, and holds the last seconds and the last changes."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, Op]] = Counter()
        """By table and operation. Logical messages are under their prefix."""
        self.recent: deque[Arrival] = deque(maxlen=_RECENT)
        """The last changes, newest first."""
        self._seconds: Counter[int] = Counter()
        """Changes received in each of the last seconds."""
        self._latencies: deque[tuple[float, float]] = deque()
        self._began_at = 0.0

    def begin(self, now: float) -> None:
        """Exclude changes that were committed before `now` from the latencies."""
        self._began_at = now
        self._latencies.clear()

    def note(self, arrival: Arrival) -> None:
        """Count one change."""
        self.counts[arrival.table, arrival.op] += 1
        self.recent.appendleft(arrival)
        self._seconds[int(arrival.received_at)] += 1
        if arrival.committed_at >= self._began_at:
            self._latencies.append((arrival.received_at, arrival.latency_ms))

    @property
    def received(self) -> int:
        """Changes received, logical messages included."""
        return self.counts.total()

    @property
    def rows(self) -> int:
        """Row changes received."""
        return sum(count for (_, op), count in self.counts.items() if op is not Op.MESSAGE)

    def history(self, now: float) -> tuple[int, ...]:
        """Changes in each of the last whole seconds, oldest first."""
        last = int(now)
        for second in [second for second in self._seconds if second < last - HISTORY_S]:
            del self._seconds[second]
        return tuple(self._seconds[second] for second in range(last - HISTORY_S, last))

    def per_second(self, now: float) -> float:
        """Changes per second over the window, or since the start if that is shorter."""
        seconds = min(max(int(now - self._began_at), 1), WINDOW_S)
        return sum(self.history(now)[-seconds:]) / seconds

    def latency(self, now: float) -> Latency | None:
        """Percentiles over the window; None without changes in it."""
        while self._latencies and self._latencies[0][0] < now - WINDOW_S:
            self._latencies.popleft()
        values = sorted(latency for _, latency in self._latencies)
        if not values:
            return None
        return Latency(p50_ms=percentile(values, 50), p99_ms=percentile(values, 99))


def percentile(ordered: Sequence[float], percent: int) -> float:
    """The smallest value that `percent` of all values do not exceed.

    >>> percentile([1, 2, 3, 4], 50), percentile([1, 2, 3, 4], 99), percentile([7], 50)
    (2, 4, 7)
    """
    return ordered[math.ceil(len(ordered) * percent / 100) - 1]
