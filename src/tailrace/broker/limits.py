"""Limits: how many connections, how much memory and how much time clients may use.

All connections share one memory budget. A request reserves memory before it is read, and a response
to a consumer before its records are read. When the budget is used up clients wait in order of
arrival; none is rejected.

Not for rate limits: the broker has none.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits per client, or for all clients together."""

    connections: int = 4000
    memory_bytes: int = 256 << 20
    """Requests and responses in progress, of all clients."""
    request_bytes: int = 64 << 20
    fetch_bytes: int = 55 << 20
    """Max response to a consumer, as in Kafka; a larger batch is sent alone."""
    unauthenticated_bytes: int = 64 << 10
    """Max request before the login."""
    login_s: float = 10.0
    """From the first byte to the end of the login."""
    refusal_s: float = 0.5
    """Delay of the response to a failed login."""
    request_s: float = 60.0
    """From the first byte of a request to its last."""
    stalled_s: float = 30.0
    """How long a response may stay unread while other clients wait for memory."""
    idle_s: float = 600.0


class MemoryBudget:
    """A budget of bytes, granted in order of arrival. A waiting reservation holds nothing.

    One reservation is always granted, however large: it is then the only one.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.used = 0

    @property
    def waiting(self) -> int:
        """Number of reservations that wait."""
        return len(self._waiting)

    async def reserve(self, size: int) -> Reservation:
        """Wait until `size` bytes are free, and reserve them."""
        reservation = Reservation(self)
        await reservation.replace(size)
        return reservation

    async def _take(self, size: int) -> None:
        if not self._waiting and self._fits(size):
            self.used += size
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, granted))
        try:
            await granted
        except asyncio.CancelledError:
            if granted.cancelled():
                self._grant()
            else:
                # The grant and the cancellation arrived together: give the bytes back.
                self._give(size)
            raise

    def _give(self, size: int) -> None:
        self.used -= size
        self._grant()

    def _grant(self) -> None:
        while self._waiting:
            size, granted = self._waiting[0]
            if not granted.cancelled():
                if not self._fits(size):
                    break
                self.used += size
                granted.set_result(None)
            self._waiting.popleft()

    def _fits(self, size: int) -> bool:
        return not self.used or self.used + size <= self._size


class Reservation:
    """A part of the budget that belongs to one request."""

    __slots__ = ("_budget", "size")

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self.size = 0

    async def replace(self, size: int) -> None:
        """Release what is reserved, then wait for `size` bytes.

        Releasing first means that two reservations can not wait for each other.
        """
        self.release()
        await self._budget._take(size)
        self.size = size

    def add(self, size: int) -> None:
        """Count memory that is in use already, without waiting; later reservations wait longer."""
        self._budget.used += size
        self.size += size

    def resize(self, size: int) -> None:
        """Set the reservation to the size that is really used, without waiting."""
        if size > self.size:
            self.add(size - self.size)
        elif size < self.size:
            freed, self.size = self.size - size, size
            self._budget._give(freed)

    def release(self) -> None:
        """Release everything."""
        self.resize(0)
