"""How long what was delivered took: since its commit, and since it became durable in the log.

Tasks count them in histograms once per note or batch, over whole columns. They pass through Spark's
metrics as text, one for each lane: Spark adds up numbers, and a column per bucket would cost more
than the delivery of a row.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import numpy as np
import orjson

from tailrace.log import durable_times
from tailrace.observe.histogram import Histogram

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Latencies:
    """Latencies that add up."""

    delivery: Histogram = field(default_factory=Histogram)
    """From the commit to the acknowledgement of the sink."""
    internal: Histogram = field(default_factory=Histogram)
    """From when the log had it durably."""

    @classmethod
    def parse(cls, text: str | None) -> Self:
        """Read what `dump` wrote; nothing from None."""
        found = orjson.loads(text) if text else {}
        return cls(
            **{
                name: Histogram(tuple(each["counts"]), each["seconds"])
                for name, each in found.items()
            }
        )

    def dump(self) -> str:
        """As text."""
        return orjson.dumps(self).decode()

    def __add__(self, other: Latencies) -> Latencies:
        return Latencies(self.delivery + other.delivery, self.internal + other.internal)

    def __sub__(self, other: Latencies) -> Latencies:
        return Latencies(self.delivery - other.delivery, self.internal - other.internal)


@dataclass(frozen=True, slots=True)
class _Decided:
    """Changes that a flush has decided."""

    at_us: int
    committed_us: NDArray[np.int64]
    lsns: NDArray[np.uint64]


class Clock:
    """Measures the changes of a task. `log` is the folder of the log."""

    def __init__(
        self, log: Path | None, *, now_us: Callable[[], int] = lambda: time.time_ns() // 1000
    ) -> None:
        self._log = log
        self._now_us = now_us
        self._decided: list[_Decided] = []
        self._sum = Latencies()
        self.percentiles_us: tuple[int, int] | None = None
        """Median and 99th percentile since the commit, as last counted."""

    def note(self, committed_us: NDArray[np.int64], lsns: NDArray[np.uint64]) -> None:
        """The sink has acknowledged changes in order, now."""
        if len(lsns):
            self._decided.append(_Decided(self._now_us(), committed_us, lsns))

    def count(self) -> Latencies:
        """The latencies of everything that was noted."""
        decided, self._decided = self._decided, []
        if decided:
            # Commit times are of the server's clock, which may be ahead of this machine's.
            ages = np.concatenate([each.at_us - each.committed_us for each in decided])
            ages = np.sort(np.maximum(ages, 0))
            p50, p99 = (int(ages[len(ages) * percent // 100]) for percent in (50, 99))
            self.percentiles_us = p50, p99
            self._sum += Latencies(Histogram.of(ages), self._internal(decided))
        return self._sum

    def _internal(self, decided: list[_Decided]) -> Histogram:
        notes = None if self._log is None else durable_times.read(self._log)
        found = Histogram()
        if notes is not None:
            for each in decided:
                found += Histogram.of(durable_times.waits_us(notes, each.lsns, each.at_us))
        return found
