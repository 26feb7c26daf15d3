"""The Spark application: one session, a runner for each pipeline."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tailrace.errors import ConfigError
from tailrace.pipeline import session
from tailrace.pipeline.facade import register
from tailrace.pipeline.publish import publish
from tailrace.pipeline.running import Runner

if TYPE_CHECKING:
    from tailrace.config import Config, Spark
    from tailrace.snapshot.job import Published, SnapshotJob, Wave

_STOP_S = 20.0


class Application:
    """All pipelines of a config."""

    def __init__(self, config: Config) -> None:
        if not config.pipelines:
            raise ConfigError("there are no pipelines", hint="Name one under `pipelines:`.")
        self._spark = session.build(_settings(config))
        # A failed batch is told in one line by its runner; Spark tells it in a page of Java.
        self._spark.sparkContext.setLogLevel("FATAL")
        register(self._spark)
        self._runners = {name: Runner(self._spark, config, name) for name in config.pipelines}

    def start(self) -> None:
        """Start every pipeline."""
        for runner in self._runners.values():
            runner.start()

    def progress(self) -> dict[str, object]:
        """What each pipeline has done."""
        return {name: runner.progress.fields() for name, runner in self._runners.items()}

    def publish(self, job: SnapshotJob, wave: Wave) -> Published:
        """Publish stretches of a snapshot."""
        return publish(self._spark, job, wave)

    @property
    def lost(self) -> BaseException | None:
        """Why Spark is gone, if it is."""
        return next((found.lost for found in self._runners.values() if found.lost), None)

    def stop(self) -> None:
        """End every query, then Spark."""
        for runner in self._runners.values():
            runner.stop()
        for runner in self._runners.values():
            runner.join(_STOP_S)
        if self.lost is None:
            self._spark.stop()


def _settings(config: Config) -> Spark:
    """For many small batches. With `local[*]`, a slot for each lane and snapshot.

    A sink that hangs then holds only its own. Tasks spend their time in Python workers and on
    sockets, so more slots than cores do no harm.
    """
    conf = session.STREAMING | config.spark.conf
    if config.spark.master != "local[*]":
        return config.spark.model_copy(update={"conf": conf})
    busy = sum(
        pipeline.lanes + (pipeline.snapshots.parallel if pipeline.snapshots else 0)
        for pipeline in config.pipelines.values()
    )
    slots = max(os.cpu_count() or 1, busy + 1)
    return config.spark.model_copy(update={"master": f"local[{slots}]", "conf": conf})
