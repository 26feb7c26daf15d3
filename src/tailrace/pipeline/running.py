"""Pipelines at work: one thread each starts its query, watches it, and starts it again.

A pipeline that fails neither stops nor slows the others. What can pass by itself is retried with
back-off; what cannot leaves the pipeline in a named state until somebody changes something.
"""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import structlog
from py4j.protocol import Py4JError

from tailrace import checkpoint
from tailrace.backfill.spool import spool_of
from tailrace.errors import (
    ConfigError,
    ReplanError,
    SinkUnreachableError,
    TailraceError,
)
from tailrace.log import retention
from tailrace.log.reader import Log
from tailrace.log.store import LocalStore
from tailrace.pipeline import opening
from tailrace.pipeline import pipeline as path
from tailrace.pipeline.failures import translate_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from tailrace.config import Config, Pipeline
    from tailrace.position import Position

_BACK_OFF_S = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
_HEALTHY_S = 30.0
_POLL_S = 0.5
_WINDOW_S = 10.0


@dataclass
class Progress:
    """What a pipeline has done so far, for people and metrics."""

    state: str = "starting"
    code: str = ""
    message: str = ""
    position: str = ""
    events: int = 0
    bytes: int = 0
    duplicates: int = 0
    batches: int = 0
    restarts: int = 0
    reconnects: int = 0
    """Restarts because the sink was not to be reached."""
    batch_ms: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    recent: deque[tuple[float, int]] = field(default_factory=deque)

    def fields(self) -> dict[str, object]:
        """As the status file holds it."""
        now = time.monotonic()
        while self.recent and self.recent[0][0] < now - _WINDOW_S:
            self.recent.popleft()
        rate = sum(count for _, count in self.recent) / _WINDOW_S
        return {
            "state": self.state, "code": self.code, "message": self.message,
            "position": self.position, "events": self.events, "bytes": self.bytes,
            "duplicates": self.duplicates, "batches": self.batches, "restarts": self.restarts,
            "reconnects": self.reconnects,
            "events_per_s": round(rate, 1), "batch_ms": self.batch_ms,
            "latency_ms": {"p50": self.p50_ms, "p99": self.p99_ms},
        }  # fmt: skip

    def note(self, batch: dict[str, Any]) -> None:
        """Add a finished micro-batch, as Spark reports it."""
        delivered = batch.get("observedMetrics", {}).get("delivered", {})
        count = delivered.get("messages") or 0
        self.batches += 1
        self.batch_ms = float(batch["durationMs"].get("triggerExecution", 0))
        self.position = str(batch["sources"][0]["endOffset"]["position"])
        if count:
            self.events += count
            self.bytes += delivered.get("bytes") or 0
            self.duplicates += delivered.get("duplicates") or 0
            if delivered.get("p50_us") is not None:
                self.p50_ms = round(delivered["p50_us"] / 1000, 1)
                self.p99_ms = round(delivered["p99_us"] / 1000, 1)
            self.recent.append((time.monotonic(), count))


class Runner:
    """One pipeline, until it is told to stop or can go no further."""

    def __init__(self, spark: SparkSession, config: Config, name: str) -> None:
        self._spark = spark
        self._config = config
        self._name = name
        self._pipeline: Pipeline = config.pipelines[name]
        self._stopping = threading.Event()
        self._events = structlog.get_logger().bind(pipeline=name)
        self._query: StreamingQuery | None = None
        self._seen = -1
        self.progress = Progress()
        self.lost: BaseException | None = None
        """Why Spark itself is gone."""
        self._thread = threading.Thread(target=self._run, name=f"pipeline-{name}", daemon=True)

    def start(self) -> None:
        """Begin, in a thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ask it to end; `join` waits for it."""
        self._stopping.set()

    def join(self, timeout_s: float) -> None:
        """Wait for the end."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                self._attempt()
            except ReplanError as error:
                self._events.info("pipeline.replanning", reason=str(error))
            except Exception as error:
                if not isinstance(error, TailraceError) and not _lives(self._spark):
                    self.lost = error
                    self._events.error("pipeline.lost", reason=str(error))
                    self._say("failed", "SPARK_LOST", str(error))
                    return
                if time.monotonic() - began > _HEALTHY_S:
                    failures = 0
                if not self._again(translate_error(error), failures):
                    return
                failures += 1
        self._say("stopped")

    def _attempt(self) -> None:
        """One life of the query."""
        log = self._wait_for_log()
        if log is None:
            return
        # To start a query takes seconds of a core, which the others need while this sink is away.
        opening.probe(self._pipeline.sink, name=self._name)
        folder = self._config.data / "checkpoints" / self._name
        if checkpoint.repair(folder, self._pinned):
            self._events.warning("pipeline.checkpoint-mended", folder=str(folder))
        folders = path.Folders(
            log=self._config.log.path,
            checkpoint=folder,
            spool=spool_of(self._config.data, self._name),
        )
        query = path.start(self._spark, self._name, self._pipeline, log=log, folders=folders)
        self._query, self._seen = query, -1
        began = time.monotonic()
        if self.progress.state != "retrying":
            self._say("running")
        try:
            while not self._stopping.wait(_POLL_S):
                self._watch(query)
                if not query.isActive:
                    raise translate_error(query.exception())
                # A query that is only started has not reached its sink yet.
                if self._seen >= 0 or time.monotonic() - began > _HEALTHY_S:
                    self._say("running")
        finally:
            with contextlib.suppress(Py4JError, OSError):
                self._watch(query)
                query.stop()

    def _pinned(self) -> Position | None:
        """How far the log knows us to be; it may be a second behind."""
        return retention.pins(LocalStore(self._config.log.path)).get(self._name)

    def _wait_for_log(self) -> Log | None:
        """The log, once capture has made it."""
        while not self._stopping.wait(0 if self._query is None else 0.1):
            try:
                return Log.open(self._config.log.path)
            except (ConfigError, FileNotFoundError):
                self._stopping.wait(0.2)
        return None

    def _watch(self, query: StreamingQuery) -> None:
        for batch in _reports(query):
            if batch["batchId"] > self._seen:
                self._seen = batch["batchId"]
                self.progress.note(batch)

    def _again(self, error: TailraceError, failures: int) -> bool:
        """Whether to try again, after a pause."""
        if self._stopping.is_set():
            self._say("stopped")
            return False
        if not error.transient:
            self._events.error("pipeline.failed", code=error.code, reason=str(error))
            self._say("failed", error.code, str(error))
            return False
        delay_s = _BACK_OFF_S[min(failures, len(_BACK_OFF_S) - 1)] * random.uniform(0.8, 1.2)  # noqa: S311
        self._events.warning(
            "pipeline.retrying", code=error.code, reason=str(error), in_s=round(delay_s, 1)
        )
        self._say("retrying", error.code, str(error))
        self.progress.restarts += 1
        self.progress.reconnects += isinstance(error, SinkUnreachableError)
        self._stopping.wait(delay_s)
        return True

    def _say(self, state: str, code: str = "", message: str = "") -> None:
        self.progress.state, self.progress.code, self.progress.message = state, code, message


def _reports(query: StreamingQuery) -> Iterator[dict[str, Any]]:
    """Spark's reports of finished batches, oldest first."""
    for report in query.recentProgress:
        batch: dict[str, Any] = json.loads(report.json)
        if "addBatch" in batch["durationMs"]:
            yield batch


def _lives(spark: SparkSession) -> bool:
    """Whether Spark still answers: what one pipeline ran into is no reason to end the others."""
    try:
        return not spark.sparkContext._jsc.sc().isStopped()
    except (Py4JError, OSError, AttributeError):
        return False
