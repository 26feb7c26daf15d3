"""Threads that run beside the HTTP endpoints. Each fails and restarts by itself."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import structlog

from tailrace.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable

    Work = Callable[[threading.Event], None]


def restart_backoff() -> Backoff:
    """1 s, 2 s, 4 s … 30 s, with jitter."""
    return Backoff(first_s=1.0, max_s=30.0)


class Services:
    """Runs each service in a thread until the process stops.

    A service is a function that runs until its event is set. One that raises an error is called
    again after a delay; the others are not affected. One that returns has nothing to do.
    """

    def __init__(self, *, backoff: Callable[[], Backoff] = restart_backoff) -> None:
        self._backoff = backoff
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._failing: set[str] = set()
        self._events = structlog.get_logger()

    def add(self, name: str, work: Work) -> None:
        """Add a service, before `start`."""
        # The threads are daemons: one that hangs in a connect does not block the exit.
        thread = threading.Thread(target=self._run, args=(name, work), name=name, daemon=True)
        self._threads.append(thread)

    def start(self) -> None:
        """Start all services."""
        for thread in self._threads:
            thread.start()

    def stop(self, timeout_s: float) -> None:
        """Stop all services; wait for each of them for at most `timeout_s`."""
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout_s)

    def failing(self) -> list[str]:
        """The services that have failed and wait for their restart."""
        return sorted(self._failing)

    def _run(self, name: str, work: Work) -> None:
        backoff = self._backoff()
        while not self._stop.is_set():
            backoff.running()
            try:
                work(self._stop)
            except Exception:
                delay_s = backoff.next_s()
                self._failing.add(name)
                self._events.exception(
                    "serve.service_failed", service=name, retry_in_s=round(delay_s, 1)
                )
            else:
                return
            self._stop.wait(delay_s)
            self._failing.discard(name)
