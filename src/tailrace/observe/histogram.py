"""Histograms of latencies: one set of buckets for every figure, as Prometheus counts them.

A histogram is a value. Those of several tasks, or of several flushes, are added up.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

BOUNDS_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    300.0, 1800.0, 7200.0,
)  # fmt: skip
"""Upper bounds of the buckets; the last bucket has no bound."""
_BOUNDS_US = [round(bound * 1_000_000) for bound in BOUNDS_S]


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many latencies fell into each bucket, and their sum.

    >>> Histogram() == Histogram() + Histogram()
    True
    """

    counts: tuple[int, ...] = (0,) * (len(BOUNDS_S) + 1)
    """Those of each bucket alone, not of all up to it."""
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if len(self.counts) != len(BOUNDS_S) + 1:
            raise ValueError(f"has {len(self.counts)} buckets, expected {len(BOUNDS_S) + 1}")

    @classmethod
    def of(cls, ages_us: NDArray[np.int64]) -> Self:
        """A histogram of latencies in microseconds, which are sorted.

        So it takes a binary search per bucket, however many there are.
        """
        below = ages_us.searchsorted(_BOUNDS_US, side="right").tolist()
        counts = tuple(upper - lower for lower, upper in pairwise([0, *below, len(ages_us)]))
        return cls(counts, float(ages_us.sum(dtype="float64")) / 1_000_000)

    def __add__(self, other: Histogram) -> Histogram:
        counts = (mine + more for mine, more in zip(self.counts, other.counts, strict=True))
        return Histogram(tuple(counts), self.seconds + other.seconds)

    def __sub__(self, other: Histogram) -> Histogram:
        counts = (mine - less for mine, less in zip(self.counts, other.counts, strict=True))
        return Histogram(tuple(counts), self.seconds - other.seconds)

    @property
    def count(self) -> int:
        """How many latencies it has."""
        return sum(self.counts)

    def buckets(self) -> Iterator[tuple[str, int]]:
        """Prometheus's buckets: each bound, and how many are not above it."""
        return zip([*map(str, BOUNDS_S), "+Inf"], accumulate(self.counts), strict=True)
