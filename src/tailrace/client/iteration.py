"""The base class of everything that `async for` iterates over.

An iteration runs once. Its client closes it at the latest.
"""

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

    The caller may leave the loop with `break` and resume it later, and may cancel a wait:
    `asyncio.wait_for(anext(events), 1)` loses nothing.
    """

    def __init__(self, access: Access) -> None:
        self._access = access
        self._generator: AsyncGenerator[list[Item]] | None = None
        self._step: asyncio.Future[list[Item]] | None = None
        self._ready: deque[Item] = deque()

    @abc.abstractmethod
    def _batches(self) -> AsyncGenerator[list[Item]]: ...

    @abc.abstractmethod
    def _deliver(self, item: Item) -> T:
        """What the caller gets for an item. Called when the caller gets it, not before."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        while not self._ready:
            self._ready.extend(await self._next())
        return self._deliver(self._ready.popleft())

    async def _next(self) -> list[Item]:
        """The next batch.

        The step is shielded: if the caller is cancelled, the step continues, and the next call
        waits for the same step.
        """
        if self._generator is None:
            self._generator = self._batches()
            self._access.iterations.add(self)
        if self._step is None:
            self._step = asyncio.ensure_future(anext(self._generator))
        try:
            batch = await asyncio.shield(self._step)
        except asyncio.CancelledError:
            raise
        except BaseException:
            self._step = None
            self._access.iterations.discard(self)
            raise
        self._step = None
        return batch

    async def aclose(self) -> None:
        """End the iteration and delete its consumer on the server."""
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


class PlainIteration(Iteration[T, T]):
    """An iteration that delivers its items as they are."""

    def _deliver(self, item: T) -> T:
        return item
