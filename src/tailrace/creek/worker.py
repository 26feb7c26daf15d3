"""What blocks, beside an event loop: a thread that does one thing after another.

Whoever waits may give up: what was not begun then never is. A thread that hangs in a call holds
neither its callers nor the end of the process, as the threads of asyncio's own executor would.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Worker:
    """One thread, started when it is first needed."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    async def do(self, work: Callable[[], T]) -> T:
        """The result of `work`."""
        future: Future[T] = Future()
        self._queue.put((future, work))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        return await asyncio.wrap_future(future)

    def _run(self) -> None:
        while True:
            future, work = self._queue.get()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = work()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
