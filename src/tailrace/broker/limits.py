"""Limits: how many connections, how much memory and how much time clients may use.

All connections share the memory. A request reserves memory before it is read, a record batch before
it is parsed, and a response to a consumer before its records are read. When the memory is used up
clients wait in order of arrival; none is rejected.

| part of the memory | used by                                                                  |
|--------------------|--------------------------------------------------------------------------|
| a quarter          | responses to consumers. Clients that read slowly delay no producer       |
| a sixteenth        | small responses to consumers, while the quarter is used up               |
| a quarter, at most | members of groups, which stay in memory. Further members are refused     |
| a quarter, at most | requests with batches for locked partitions. Further batches are refused |
| the rest           | all other requests                                                       |

Not for rate limits: the broker has none.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits per client, or for all clients together."""

    connections: int = 12_000
    memory_bytes: int = 256 << 20
    """Requests and responses in progress, of all clients."""
    request_bytes: int = 64 << 20
    fetch_bytes: int = 16 << 20
    """Max response to a consumer; a larger batch is sent alone."""
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
    member_bytes: int = 1 << 20
    """Max metadata of a member of a consumer group, for all its assignors together."""
    group_members: int = 1000
    """Max members of a consumer group."""

    @property
    def kept_bytes(self) -> int:
        """Max memory of all consumer groups, and of requests that wait for locked partitions."""
        return self.memory_bytes // 4

    @property
    def response_bytes(self) -> int:
        """Memory for responses to consumers, of all clients."""
        return self.memory_bytes // 4

    @property
    def small_response_bytes(self) -> int:
        """Memory for small responses to consumers when that for larger ones is used up."""
        return self.memory_bytes // 16


class MemoryBudget:
    """A budget of bytes, granted in order of arrival. A waiting reservation holds nothing.

    One reservation is always granted, however large: it is then the only one.

    Reservations that grow keep what they have while they wait, so they could wait for each other.
    Two rules prevent it: they are granted before new reservations, and one of them at a time may
    exceed the budget. It must not wait for another one.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._growing: deque[tuple[int, asyncio.Future[None], Reservation]] = deque()
        self._exceeding: Reservation | None = None
        self.used = 0
        self.kept = 0
        """Bytes that stay in use between requests. They leave less for requests."""

    @property
    def waiting(self) -> int:
        """Number of reservations that wait."""
        return len(self._waiting) + len(self._growing)

    def busy(self, size: int) -> bool:
        """Whether a reservation of so many bytes would wait."""
        return bool(self.waiting) or not self._fits(size)

    async def reserve(self, size: int) -> Reservation:
        """Wait until `size` bytes are free, and reserve them."""
        reservation = Reservation(self)
        await reservation.replace(size)
        return reservation

    async def _take(self, size: int) -> None:
        if not self.waiting and self._fits(size):
            self.used += size
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, granted))
        await self._granted(granted, size)

    async def _grow(self, size: int, reservation: Reservation) -> None:
        exceeding = self._exceeding is reservation
        if exceeding or (not self._growing and self._may_grow(size, reservation)):
            self.used += size
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._growing.append((size, granted, reservation))
        await self._granted(granted, size)

    async def _granted(self, granted: asyncio.Future[None], size: int) -> None:
        try:
            await granted
        except asyncio.CancelledError:
            if granted.cancelled():
                self._grant()
            else:
                # The grant and the cancellation arrived together: give the bytes back.
                self._give(size)
            raise

    def keep(self, size: int) -> None:
        """Set the number of bytes that stay in use between requests."""
        self.kept = size
        self._grant()

    def _give(self, size: int) -> None:
        self.used -= size
        if self.used + self.kept <= self._size:
            self._exceeding = None
        self._grant()

    def _grant(self) -> None:
        while self._growing:
            size, granted, reservation = self._growing[0]
            if not granted.cancelled():
                if not self._may_grow(size, reservation):
                    return
                self.used += size
                granted.set_result(None)
            self._growing.popleft()
        while self._waiting:
            size, granted = self._waiting[0]
            if not granted.cancelled():
                if not self._fits(size):
                    break
                self.used += size
                granted.set_result(None)
            self._waiting.popleft()

    def _fits(self, size: int) -> bool:
        return not self.used or self.used + self.kept + size <= self._size

    def _may_grow(self, size: int, reservation: Reservation) -> bool:
        if self.used + self.kept + size > self._size:
            if self._exceeding is not None and self._exceeding is not reservation:
                return False
            self._exceeding = reservation
        return True

    def _released(self, reservation: Reservation) -> None:
        if self._exceeding is reservation:
            self._exceeding = None
            self._grant()


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

    async def grow(self, size: int) -> None:
        """Wait for `size` more bytes, and keep what is reserved meanwhile."""
        await self._budget._grow(size, self)
        self.size += size

    def move(self, budget: MemoryBudget) -> None:
        """Release everything. From now on the memory is of another budget."""
        self.release()
        self._budget = budget

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
        self._budget._released(self)
