"""How long commits take to become durable in the log, and when positions did.

The flusher's thread notes each submission, the session's thread counts what was noted.
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
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from tailrace.log.format.entry import Entry
    from tailrace.position import Lsn

_EPOCH_US = 946_684_800_000_000
"""2000-01-01 in microseconds since 1970: PostgreSQL counts from there."""
_BEGIN = ord("B")
_TIME_AT = 9
"""Where BEGIN has the time of its commit."""


class Arrivals:
    """Notes what has become durable. Without a file it only measures."""

    def __init__(self, *, now_us: Callable[[], int] = lambda: time.time_ns() // 1000) -> None:
        self._now_us = now_us
        self._times: DurableTimes | None = None
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

    def note(self, entries: Sequence[Entry]) -> None:
        """These entries are durable now."""
        now_us = self._now_us()
        for entry in entries:
            if entry.transactions:
                self._ages.append(now_us - commit_times_us(entry))
        ends = [
            entry.last.lsn for entry in entries if entry.ends and entry.kind is not Kind.PROGRESS
        ]
        if ends and self._times is not None:
            with contextlib.suppress(OSError):
                self._times.note(ends[-1], now_us)

    def latencies(self) -> Histogram:
        """Those of the transactions that were noted since the last call."""
        ages = [self._ages.popleft() for _ in range(len(self._ages))]
        if not ages:
            return Histogram()
        # Commit times are of the server's clock, which may be ahead of this machine's.
        return Histogram.of(np.sort(np.maximum(np.concatenate(ages), 0)))


def commit_times_us(entry: Entry) -> NDArray[np.int64]:
    """When the transactions of an entry were committed, in microseconds since 1970."""
    if entry.transactions == 1:
        return np.array([entry.last_time], np.int64) + _EPOCH_US
    body = np.frombuffer(entry.body, np.uint8)
    begins = entry.offsets[:-1][body[entry.offsets[:-1]] == _BEGIN].astype(np.int64)
    times = body[begins[:, None] + np.arange(_TIME_AT, _TIME_AT + 8)].copy().view(">i8")
    found: NDArray[np.int64] = times.ravel().astype(np.int64) + _EPOCH_US
    return found
