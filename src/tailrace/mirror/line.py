"""Two steps of work side by side, never far apart: a short queue between, and quick turns."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import TYPE_CHECKING, Generic, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

T = TypeVar("T")

_MOST = 2
_TURN_S = 0.0002


@contextlib.contextmanager
def quick_turns() -> Iterator[None]:
    """Let threads take turns often.

    One that opens rows keeps the interpreter for 5 ms at a time, and one that feeds COPY needs it
    every 128 KB: a million rows took 10 s to load, and with short turns 8 s.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, _TURN_S))
    try:
        yield
    finally:
        sys.setswitchinterval(before)


class Line(Generic[T]):
    """Hands what is put in to a worker, one after another. What the worker raises comes out of the
    next call; leaving the block gives up what is still waiting."""

    def __init__(self, work: Callable[[T], Awaitable[None]]) -> None:
        self._work = work
        self._queue: asyncio.Queue[T] = asyncio.Queue(_MOST)
        self._worker: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._worker = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._worker is not None
        self._worker.cancel()
        await asyncio.gather(self._worker, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            item = await self._queue.get()
            await self._work(item)
            self._queue.task_done()

    async def put(self, item: T) -> None:
        """Hand on, once there is room."""
        await self._or_fail(self._queue.put(item))

    async def empty(self) -> None:
        """Wait until everything is worked off."""
        await self._or_fail(self._queue.join())

    async def _or_fail(self, waiting: Awaitable[None]) -> None:
        assert self._worker is not None
        task = asyncio.ensure_future(waiting)
        try:
            await asyncio.wait({task, self._worker}, return_when=asyncio.FIRST_COMPLETED)
            if self._worker.done():
                self._worker.result()
        finally:
            if not task.done():
                task.cancel()
