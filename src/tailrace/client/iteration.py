"""What `async for` goes over: once, and closed with its client at the latest."""

from __future__ import annotations

import abc
import asyncio
from collections import deque
from typing import TYPE_CHECKING, Generic, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from tailrace.client.access import Access

T = TypeVar("T")
Item = TypeVar("Item")


class Iteration(abc.ABC, Generic[Item, T]):
    """An asynchronous iterator. `aclose`, or `async with` around it, ends it early.

    A loop that is left by `break` may be gone on with, and waiting for the next one may be given
    up: `asyncio.wait_for(anext(events), 1)` loses nothing.
    """

    def __init__(self, access: Access) -> None:
        self._access = access
        self._generator: AsyncGenerator[list[Item]] | None = None
        self._step: asyncio.Future[list[Item]] | None = None
        self._ready: deque[Item] = deque()

    @abc.abstractmethod
    def _batches(self) -> AsyncGenerator[list[Item]]: ...

    @abc.abstractmethod
    def _handed(self, item: Item) -> T: ...

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        while not self._ready:
            self._ready.extend(await self._next())
        return self._handed(self._ready.popleft())

    async def _next(self) -> list[Item]:
        """A batch. Whoever waits may be cancelled; the step goes on, for whoever comes next."""
        if self._generator is None:
            self._generator = self._batches()
            self._access.iterations.add(self)
        if self._step is None:
            self._step = asyncio.ensure_future(anext(self._generator))
        try:
            found = await asyncio.shield(self._step)
        except asyncio.CancelledError:
            raise
        except BaseException:
            self._step = None
            self._access.iterations.discard(self)
            raise
        self._step = None
        return found

    async def aclose(self) -> None:
        """Let go of what the server keeps for it."""
        self._access.iterations.discard(self)
        step, self._step = self._step, None
        if step is not None:
            step.cancel()
            await asyncio.gather(step, return_exceptions=True)
        self._ready.clear()
        if self._generator is not None:
            await self._generator.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
