"""How long commits take to become durable in the log, and when positions did.

The flusher's thread notes each entry, the session's thread counts what was noted.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from tailrace.log.durable_times import DurableTimes
from tailrace.log.format.entry import Kind
from tailrace.observe.histogram import Histogram

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from tailrace.log.format.entry import Entry
    from tailrace.position import Lsn

_EPOCH_US = 946_684_800_000_000
"""2000-01-01 in microseconds since 1970: PostgreSQL counts from there."""


class Arrivals:
    """Notes what has become durable. Without a file it only measures."""

    def __init__(self, *, now_us: Callable[[], int] = lambda: time.time_ns() // 1000) -> None:
        self._now_us = now_us
        self._times: DurableTimes | None = None
        self._submitted: NDArray[np.int64] = np.empty(0, np.int64)
        """Commit times of what is not durable yet; the flusher has one submission at a time."""
        self._ages: deque[NDArray[np.int64]] = deque()

    def open(self, folder: Path, end: Lsn) -> None:
        """Note positions in a file, unless it cannot be written: then their times are unknown."""
        self.close()
        with contextlib.suppress(OSError):
            self._times = DurableTimes.open(folder, end)

    def close(self) -> None:
        """Close the file."""
        if self._times is not None:
            self._times.close()
            self._times = None

    def submitted(self, committed: NDArray[np.int64]) -> None:
        """The next submission has transactions with these commit times, as on the wire."""
        self._submitted = committed

    def note(self, entry: Entry) -> None:
        """The next entry of the submission is durable now."""
        now_us = self._now_us()
        if entry.transactions:
            committed, self._submitted = np.split(self._submitted, [entry.transactions])
            self._ages.append(now_us - _EPOCH_US - committed)
        if entry.ends and entry.kind is not Kind.PROGRESS and self._times is not None:
            with contextlib.suppress(OSError):
                self._times.note(entry.last.lsn, now_us)

    def latencies(self) -> Histogram:
        """Those of the transactions that were noted since the last call."""
        ages = [self._ages.popleft() for _ in range(len(self._ages))]
        if not ages:
            return Histogram()
        # Commit times are of the server's clock, which may be ahead of this machine's.
        return Histogram.of(np.sort(np.maximum(np.concatenate(ages), 0)))
