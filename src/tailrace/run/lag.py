"""How long ago the log contained something that a pipeline has not delivered: lag in seconds.

Positions have no times. So every reading of the log notes when it ended where, and the lag of a
pipeline is the age of the first note beyond its position. Notes are thinned out as they grow old,
so the answer is exact to a few per cent and the memory is bounded.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace.position import Position

_MAX_NOTES = 512


class LagClock:
    """When the log ended where.

    >>> from tailrace.position import Lsn, Position
    >>> clock = LagClock()
    >>> clock.note(10.0, Position(Lsn(100), 0)); clock.note(20.0, Position(Lsn(200), 0))
    >>> [clock.lag_s(25.0, Position(Lsn(lsn), 0)) for lsn in (50, 100, 200)]
    [15.0, 5.0, 0.0]
    """

    def __init__(self) -> None:
        self._ends: list[Position] = []
        self._times: list[float] = []

    def note(self, now: float, end: Position) -> None:
        """The log ends at `end`. Nothing is noted while it does not grow."""
        if self._ends and end < self._ends[-1]:
            # Another log.
            self._ends, self._times = [], []
        if self._ends and end == self._ends[-1]:
            return
        ends, times = [*self._ends, end], [*self._times, now]
        if len(ends) > _MAX_NOTES:
            # The older half keeps every other note.
            half = _MAX_NOTES // 2
            ends = [*ends[:half:2], *ends[half:]]
            times = [*times[:half:2], *times[half:]]
        # Readers in other threads see the old lists or the new ones.
        self._ends, self._times = ends, times

    def lag_s(self, now: float, position: Position) -> float:
        """Seconds since the log first ended beyond this position; 0 if it does not."""
        ends, times = self._ends, self._times
        index = bisect_right(ends, position)
        return max(now - times[index], 0.0) if index < min(len(ends), len(times)) else 0.0
