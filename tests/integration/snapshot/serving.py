"""A snapshot service in the test's own process, which may die in the middle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrace.errors import TailraceError
from tailrace.pipeline.publish import publish
from tailrace.snapshot.service.service import Service
from tests.system import System

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.snapshot.job import Edition, Published, Wave


class Serving(System):
    """Serves snapshots on request.

    Counts the waves of stretches. After the wave `cut_after`, and before that is noted, it ends
    as if the process had died; `fault` is raised instead of the next wave; `before` is called
    before each.
    """

    def __init__(self, *parts: Any, **more: Any) -> None:
        super().__init__(*parts, **more)
        self.waves = 0
        self.cut_after = -1
        self.fault: Exception | None = None
        self.before: Callable[[int], None] = lambda _: None
        self.service: Service | None = None

    def start_service(self) -> None:
        self.service = Service(self.config, self.name, self._publish)
        self.service.start()

    def _publish(self, edition: Edition, wave: Wave) -> Published:
        if self.fault is not None:
            fault, self.fault = self.fault, None
            raise fault
        self.before(self.waves)
        self.waves += 1
        assert self.spark is not None
        found = publish(self.spark, edition, wave)
        if self.waves == self.cut_after:
            assert self.service is not None
            self.service.stop()
            raise TailraceError("cut")
        return found

    def stop_service(self) -> None:
        if self.service is not None:
            self.service.stop()
            self.service.join(30)
            self.service = None

    def stop(self) -> None:
        self.stop_service()
        super().stop()
