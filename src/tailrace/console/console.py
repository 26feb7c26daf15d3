"""The console of an HTTP process: its trends, which it samples, and its pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.console.site import Site
from tailrace.console.system import System
from tailrace.console.trends import Trends

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from tailrace.access.access import Access
    from tailrace.config import Config
    from tailrace.run.overview import Overview


class Console:
    """Made once per process: the trends outlive a failed HTTP server."""

    def __init__(self, config: Config, overview: Overview) -> None:
        self._config = config
        self._overview = overview
        self._trends = Trends(config.data, overview.read)

    def run(self, stop: threading.Event) -> None:
        """Sample the trends until `stop` is set."""
        self._trends.run(stop)

    def site(
        self,
        access: Access,
        *,
        failing: Callable[[], Sequence[str]] = tuple,
        stopping: Callable[[], bool] = lambda: False,
    ) -> Site:
        """The pages."""
        system = System(self._config, self._overview.read, self._trends, access, failing=failing)
        return Site(system, stopping=stopping)
