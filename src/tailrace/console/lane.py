"""Work that takes a core, or waits: a little of it at a time.

All routes share one pool of threads. Requests that waited in it for each other would stop the pages
that wait for nothing, so they wait here, in the event loop.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
_RETRY_AFTER = {"retry-after": "5"}


class Lane:
    """Runs at most `at_once` functions in threads; at most `waiting` more wait for their turn."""

    def __init__(self, at_once: int, *, waiting: int) -> None:
        self._turn = asyncio.Semaphore(at_once)
        self._most = at_once + waiting
        self._entered = 0

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` returns. Raises HTTPException if too many wait."""
        if self._entered >= self._most:
            raise HTTPException(503, "the server is busy: retry in some seconds", _RETRY_AFTER)
        self._entered += 1
        try:
            async with self._turn:
                return await run_in_threadpool(work)
        finally:
            self._entered -= 1
