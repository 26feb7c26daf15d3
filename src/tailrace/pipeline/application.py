"""The Spark application: one session, and one runner per pipeline."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from importlib import import_module
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from tailrace.errors import ConfigError
from tailrace.pipeline import interpreter, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tailrace.config import Config, Spark
    from tailrace.observe.figures import PipelineFigures
    from tailrace.pipeline.running import Runner
    from tailrace.snapshot.job import Published, SnapshotJob, Wave

# ruff: noqa: PLC0415 - most modules are loaded while the JVM starts

_STOP_S, _SPANS_S = 20.0, 5.0
_LOADED_LATER = (
    "tailrace.pipeline.running",
    "tailrace.pipeline.publish",
    "tailrace.snapshot.service.service",
)


class Application:
    """All pipelines of a config."""

    def __init__(self, config: Config) -> None:
        if not config.pipelines:
            raise ConfigError(
                "the settings have no pipelines", hint="Add one under `pipelines:`, then restart."
            )
        self._spark = _start_spark(config)
        from tailrace.pipeline.facade import register
        from tailrace.pipeline.running import Runner

        # The runner logs a failed batch in one line; Spark would log a page of Java for it.
        self._spark.sparkContext.setLogLevel("FATAL")
        register(self._spark)
        self._runners: dict[str, Runner] = {
            name: Runner(self._spark, config, name) for name in config.pipelines
        }

    def start(self) -> None:
        """Start every pipeline."""
        threading.Thread(target=_start_daemon, args=(self._spark,), daemon=True).start()
        for runner in self._runners.values():
            runner.start()

    def progress(self) -> dict[str, PipelineFigures]:
        """The present figures of every pipeline."""
        return {name: runner.progress.current() for name, runner in self._runners.items()}

    def publish(self, job: SnapshotJob, wave: Wave) -> Published:
        """Publish a part of a snapshot."""
        from tailrace.pipeline.publish import publish

        return publish(self._spark, job, wave)

    @property
    def lost(self) -> BaseException | None:
        """Why Spark has ended; None while it runs."""
        return next((runner.lost for runner in self._runners.values() if runner.lost), None)

    def stop(self) -> None:
        """Stop every query, then Spark."""
        for runner in self._runners.values():
            runner.stop()
        deadline = time.monotonic() + _STOP_S
        for runner in self._runners.values():
            runner.join(max(deadline - time.monotonic(), 0))
        # All collectors together: each may hang.
        deadline = time.monotonic() + _SPANS_S
        for runner in self._runners.values():
            runner.close(deadline)
        if self.lost is None:
            self._spark.stop()


def _start_spark(config: Config) -> SparkSession:
    """The session. While the JVM starts, a thread loads what this process needs next."""
    interpreter.skip_discovery()
    used = {pipeline.sink.type for pipeline in config.pipelines.values()}
    os.environ[interpreter.SINKS] = ",".join(sorted(used))
    loading = threading.Thread(target=lambda: [*map(import_module, _LOADED_LATER)], daemon=True)
    loading.start()
    spark = session.build(_spark_settings(config))
    loading.join()
    return spark


def _start_daemon(spark: SparkSession) -> None:
    """Have Spark start the daemon of the workers, while it plans the queries that need them."""
    # A failure shows in the queries as well, which report it.
    with contextlib.suppress(PySparkException, Py4JError, OSError):
        spark.sparkContext.parallelize([0], 1).count()


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
