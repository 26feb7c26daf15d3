"""A snapshot service in the test's own process, which may die in the middle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.errors import TailraceError
from tailrace.pipeline.publish import publish
from tailrace.snapshot.service.service import Service

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from tailrace.config import Config
    from tailrace.snapshot.job import Published, SnapshotJob, Wave


class Serving:
    """Counts the waves of stretches. After the wave `cut_after`, and before that is noted, it ends
    as if the process had died; `fault` is raised instead of the next wave; `before` is called
    before each."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self.waves = 0
        self.cut_after = -1
        self.fault: Exception | None = None
        self.before: Callable[[int], None] = lambda _: None
        self.service: Service | None = None

    def serve(self, config: Config, name: str) -> None:
        self.service = Service(config, name, self._publish)
        self.service.start()

    def _publish(self, edition: SnapshotJob, wave: Wave) -> Published:
        if self.fault is not None:
            fault, self.fault = self.fault, None
            raise fault
        self.before(self.waves)
        self.waves += 1
        found = publish(self._spark, edition, wave)
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
