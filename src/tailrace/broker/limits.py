"""How much clients may take: of connections, of memory, of time.

Memory is a budget that all connections share. A request waits for room before it is read, and so
does what a consumer is going to be sent: clients become slower, and none is turned away.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one client, or all of them, may take."""

    connections: int = 4000
    memory_bytes: int = 256 << 20
    """Of requests and answers under way."""
    request_bytes: int = 64 << 20
    fetch_bytes: int = 55 << 20
    """Of an answer to a consumer, as in Kafka; a larger batch comes alone."""
    stranger_bytes: int = 64 << 10
    """Of a request before the login."""
    login_s: float = 10.0
    """From the first byte to the end of the login."""
    refusal_s: float = 0.5
    """How long a failed login waits for its answer."""
    request_s: float = 60.0
    """From the first byte of a request to its last."""
    stalled_s: float = 30.0
    """How long an answer may lie unread while others wait for memory."""
    idle_s: float = 600.0


class Room:
    """A budget of bytes, in order of asking; whoever waits holds nothing.

    One share is always granted, however large: it is alone then.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.used = 0

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    async def take(self, size: int) -> Share:
        """So many bytes, once there is room."""
        share = Share(self)
        await share.become(size)
        return share

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
                # It was granted, and its holder has not heard of it.
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


class Share:
    """A part of the room, which its holder may change, and gives back."""

    __slots__ = ("_room", "size")

    def __init__(self, room: Room) -> None:
        self._room = room
        self.size = 0

    async def become(self, size: int) -> None:
        """Give back what is held, then wait for so many bytes."""
        self.release()
        await self._room._take(size)
        self.size = size

    def grow(self, size: int) -> None:
        """What is there already is counted, without waiting; the next ones wait longer."""
        self._room.used += size
        self.size += size

    def fit(self, size: int) -> None:
        """It turned out to be so many bytes."""
        if size > self.size:
            self.grow(size - self.size)
        elif size < self.size:
            freed, self.size = self.size - size, size
            self._room._give(freed)

    def release(self) -> None:
        """Give back everything."""
        self.fit(0)
