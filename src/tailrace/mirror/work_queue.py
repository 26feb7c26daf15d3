"""Two steps of work in parallel, with a short queue between producer and worker."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from typing import TYPE_CHECKING, Generic, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

T = TypeVar("T")

# Chunks of up to a megabyte: enough to keep the worker busy, and little memory.
_MAX_ITEMS = 2
_SWITCH_INTERVAL_S = 0.0002


@contextlib.contextmanager
def short_switch_interval() -> Iterator[None]:
    """Switch between threads more often than Python's default of 5 ms.

    The thread that decodes rows holds the interpreter for a whole interval, and the thread that
    feeds COPY needs it every 128 KB. One million rows: 10 s with the default, 8 s with this.
    """
    _switching.enter()
    try:
        yield
    finally:
        _switching.leave()


class _Switching:
    """The interpreter has one interval: the last of several mirrors to leave restores it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._before = 0.0

    def enter(self) -> None:
        with self._lock:
            if not self._inside:
                self._before = sys.getswitchinterval()
                sys.setswitchinterval(min(self._before, _SWITCH_INTERVAL_S))
            self._inside += 1

    def leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                sys.setswitchinterval(self._before)


_switching = _Switching()


class WorkQueue(Generic[T]):
    """Passes items to a worker, one after another.

    An error of the worker is raised by the next call. Leaving the block discards queued items.
    """

    def __init__(self, work: Callable[[T], Awaitable[None]]) -> None:
        self._work = work
        self._queue: asyncio.Queue[T] = asyncio.Queue(_MAX_ITEMS)
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
        """Add an item, after waiting for space."""
        await self._or_fail(self._queue.put(item))

    async def join(self) -> None:
        """Wait until the worker has finished all items."""
        await self._or_fail(self._queue.join())

    async def _or_fail(self, waiting: Awaitable[None]) -> None:
        """Wait, unless the worker fails first: then raise its error."""
        assert self._worker is not None
        task = asyncio.ensure_future(waiting)
        try:
            await asyncio.wait({task, self._worker}, return_when=asyncio.FIRST_COMPLETED)
            if self._worker.done():
                self._worker.result()
        finally:
            if not task.done():
                task.cancel()
