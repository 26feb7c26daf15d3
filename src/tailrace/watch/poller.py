"""Threads for what may block: a disk that hangs or a server that is silent blocks nothing else."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Generic, TypeVar

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Poller(Generic[T]):
    """Calls a function again and again in a thread; `answer` is what it returned last.

    A function that raises keeps its last answer. One that hangs shows in the age of the answer.
    """

    def __init__(
        self,
        name: str,
        ask: Callable[[], T],
        every_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask = ask
        self._every_s = every_s
        self._clock = clock
        self._stop = threading.Event()
        self._once_more = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._started_at = clock()
        self._answered_at: float | None = None
        self.answer: T | None = None

    def start(self) -> None:
        """Start the thread, a daemon."""
        self._thread.start()

    @property
    def age_s(self) -> float:
        """Seconds since the last answer, or since the start."""
        return self._clock() - (self._answered_at or self._started_at)

    def stop(self, timeout_s: float = 0.0, *, once_more: bool = False) -> None:
        """Stop asking, after asking `once_more`; wait for the answer for at most so long."""
        self._once_more = once_more
        self._stop.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._stop.is_set():
            self.poll()
            self._stop.wait(self._every_s)
        if self._once_more:
            self.poll()

    def poll(self) -> None:
        """Ask once."""
        try:
            self.answer = self._ask()
        except Exception:
            structlog.get_logger().exception("watch.poll_failed", what=self._thread.name)
        else:
            self._answered_at = self._clock()
