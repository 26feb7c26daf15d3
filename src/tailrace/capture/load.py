"""How long transactions are collected into one entry of the log, by the load of the stream.

A flush at every pause of the stream gives each transaction the shortest way. A stream of many
megabytes per second pauses a thousand times per second too, whenever capture has caught up with the
walsender, and every flush has a price: an fsync, a worse compression, and for all readers the fixed
cost of an entry. Reading 100,000 rows per second from entries of 20 rows takes more than twice the
time of reading them from entries of 2,000.

So the transactions of a fast stream are collected, a millisecond for each megabyte per second. That
is nothing for a stream of 1,000 changes per second, about 2 ms at 10,000, and at 100,000 an entry
has about 1,500 changes.
"""

from __future__ import annotations

_S_PER_BYTES_PER_S = 1e-9
_MIN_S = 0.001
"""Shorter waits cost as much as they save."""
_SMOOTHED_S = 0.1


class Load:
    """The rate of a stream, smoothed over a tenth of a second."""

    def __init__(self, now: float) -> None:
        self._at = now
        self._bytes_per_s = 0.0

    def note(self, size: int, now: float) -> None:
        """Note that bytes were received since the last call."""
        elapsed_s = max(now - self._at, 1e-6)
        self._at = now
        weight = min(elapsed_s / _SMOOTHED_S, 1.0)
        self._bytes_per_s += weight * (size / elapsed_s - self._bytes_per_s)

    def collect_s(self, now: float) -> float:
        """How long to collect transactions, although the stream pauses."""
        recent = max(1.0 - (now - self._at) / _SMOOTHED_S, 0.0)
        seconds = recent * self._bytes_per_s * _S_PER_BYTES_PER_S
        return seconds if seconds >= _MIN_S else 0.0
