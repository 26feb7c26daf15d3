"""The Spark application: one session, and one runner per pipeline."""

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
    from tailrace.observe.figures import PipelineFigures
    from tailrace.snapshot.job import Published, SnapshotJob, Wave

_STOP_S = 20.0


class Application:
    """All pipelines of a config."""

    def __init__(self, config: Config) -> None:
        if not config.pipelines:
            raise ConfigError(
                "the settings have no pipelines", hint="Add one under `pipelines:`, then restart."
            )
        self._spark = session.build(_spark_settings(config))
        # The runner logs a failed batch in one line; Spark would log a page of Java for it.
        self._spark.sparkContext.setLogLevel("FATAL")
        register(self._spark)
        self._runners = {name: Runner(self._spark, config, name) for name in config.pipelines}

    def start(self) -> None:
        """Start every pipeline."""
        for runner in self._runners.values():
            runner.start()

    def progress(self) -> dict[str, PipelineFigures]:
        """The present figures of every pipeline."""
        return {name: runner.progress.current() for name, runner in self._runners.items()}

    def publish(self, job: SnapshotJob, wave: Wave) -> Published:
        """Publish a part of a snapshot."""
        return publish(self._spark, job, wave)

    @property
    def lost(self) -> BaseException | None:
        """Why Spark has ended; None while it runs."""
        return next((runner.lost for runner in self._runners.values() if runner.lost), None)

    def stop(self) -> None:
        """Stop every query, then Spark."""
        for runner in self._runners.values():
            runner.stop()
        for runner in self._runners.values():
            runner.join(_STOP_S)
        if self.lost is None:
            self._spark.stop()


def _spark_settings(config: Config) -> Spark:
    """Spark's settings for many small batches. With `local[*]`, one slot per lane and snapshot.

    A sink that hangs then blocks only its own slots. Tasks spend their time in Python workers and
    on sockets, so more slots than cores cost nothing.
    """
    conf = session.STREAMING | config.spark.conf
    if config.spark.master != "local[*]":
        return config.spark.model_copy(update={"conf": conf})
    needed = sum(
        pipeline.lanes + (pipeline.snapshots.parallel if pipeline.snapshots else 0)
        for pipeline in config.pipelines.values()
    )
    slots = max(os.cpu_count() or 1, needed + 1)
    return config.spark.model_copy(update={"master": f"local[{slots}]", "conf": conf})
