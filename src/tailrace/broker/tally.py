"""The broker's counters since its start; `figures` turns them into metrics."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Upper bounds of the histogram's buckets; the last bucket has no bound."""


@dataclass(slots=True)
class Timing:
    """How long the responses to one kind of request took."""

    buckets: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one response."""
        self.buckets[bisect_left(BOUNDS_S, seconds)] += 1
        self.seconds += seconds


@dataclass(slots=True)
class Tally:
    """Counters since the start."""

    requests: dict[int, Timing] = field(default_factory=dict)
    """By Kafka's API key."""
    batches: int = 0
    produced_records: int = 0
    produced_bytes: int = 0
    fetched_bytes: int = 0
    logins: Counter[str] = field(default_factory=lambda: Counter(accepted=0, refused=0))
    refused: Counter[str] = field(default_factory=Counter)
    """Connections that the broker closed, by reason."""

    def answered(self, api: int, seconds: float) -> None:
        """Count a request that was answered."""
        timing = self.requests.get(api)
        if timing is None:
            timing = self.requests[api] = Timing()
        timing.add(seconds)
