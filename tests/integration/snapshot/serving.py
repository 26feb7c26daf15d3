"""A snapshot service in the test process, which can stop at any wave as if it were killed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrace.errors import UnexpectedError
from tailrace.pipeline.publish import publish
from tailrace.snapshot.service.service import SnapshotService
from tests.system import System
from tests.waiting import LONG_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.snapshot.job import Published, SnapshotJob, Wave


class Serving(System):
    """Serves snapshots on request, and counts the waves of stretches.

    After wave `cut_after`, before the record is saved, it stops as if the process had been killed.
    `fault` is raised in place of the next wave. `before` is called before each wave.
    """

    def __init__(self, *parts: Any, **more: Any) -> None:
        super().__init__(*parts, **more)
        self.waves = 0
        self.cut_after = -1
        self.fault: Exception | None = None
        self.before: Callable[[int], None] = lambda _: None
        self.service: SnapshotService | None = None

    def start_service(self) -> None:
        self.service = SnapshotService(self.config, self.name, self._publish)
        self.service.start()

    def _publish(self, job: SnapshotJob, wave: Wave) -> Published:
        if self.fault is not None:
            fault, self.fault = self.fault, None
            raise fault
        self.before(self.waves)
        self.waves += 1
        assert self.spark is not None
        result = publish(self.spark, job, wave)
        if self.waves == self.cut_after:
            assert self.service is not None
            self.service.stop()
            raise UnexpectedError("cut")
        return result

    def stop_service(self) -> None:
        if self.service is not None:
            self.service.stop()
            self.service.join(LONG_S)
            self.service = None

    def stop(self) -> None:
        self.stop_service()
        super().stop()
