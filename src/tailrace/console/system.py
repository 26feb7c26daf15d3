"""What views and actions work on: the settings, the figures of now, and their trends."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.concurrency import run_in_threadpool

from tailrace.console.lane import Lane
from tailrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from tailrace.access.access import Access
    from tailrace.config import Config, Pipeline
    from tailrace.console.page import Page
    from tailrace.console.trends import Trends
    from tailrace.observe.figures import SystemFigures

T = TypeVar("T")
_FIGURES_S = 1.0
"""Pages that are loaded within a second show the same figures: they are read once."""

_MAX_WAITING = 500


class System:
    """A running system, as the pages see it."""

    def __init__(
        self,
        config: Config,
        read: Callable[[], SystemFigures],
        trends: Trends,
        access: Access,
        *,
        failing: Callable[[], Sequence[str]] = tuple,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.trends = trends
        self.access = access
        self.failing = failing
        self._read = read
        self._clock = clock
        self._kept: dict[Hashable, tuple[float, Any]] = {}
        self._lanes: dict[str, Lane] = {}
        self._locks: dict[Hashable, threading.Lock] = {}

    def figures(self) -> SystemFigures:
        """The figures of now, at most a second old."""
        return self.kept("figures", _FIGURES_S, self._read)

    def kept(self, name: Hashable, for_s: float, read: Callable[[], T]) -> T:
        """What `read` returned within the last seconds, or returns now. For what costs a server or
        a disk something: any number of viewers costs as much as one."""
        with self._locks.setdefault(name, threading.Lock()):
            found = self._kept.get(name)
            if found is None or self._clock() - found[0] > for_s:
                found = self._kept[name] = (self._clock(), read())
            value: T = found[1]
            return value

    def forget(self, name: Hashable) -> None:
        """Have `kept` read again: an action has changed it."""
        with self._locks.setdefault(name, threading.Lock()):
            self._kept.pop(name, None)

    async def in_turn(self, page: Page, view: Callable[[], T]) -> T:
        """A view of a page, in a thread, after those that the page's limit puts before it."""
        if not page.at_once:
            return await run_in_threadpool(view)
        lane = self._lanes.setdefault(page.name, Lane(page.at_once, waiting=_MAX_WAITING))
        return await lane.run(view)

    def pipeline(self, name: str) -> Pipeline:
        """A pipeline of the settings. Raises ConfigError."""
        if name not in self.config.pipelines:
            known = ", ".join(self.config.pipelines) or "none"
            raise ConfigError(
                f"there is no pipeline {name!r}", hint=f"Configured pipelines: {known}."
            )
        return self.config.pipelines[name]
