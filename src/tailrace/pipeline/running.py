"""Running pipelines: one thread per pipeline starts its query, watches it, and restarts it.

A pipeline that fails neither stops nor slows the others. Transient errors are retried with
back-off. Any other error leaves the pipeline in the state `failed`, with the error's code, until an
operator restarts it. A paused pipeline has no query, and keeps its place in the log
(`tailrace.control`).
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import structlog
from py4j.protocol import Py4JError

from tailrace import checkpoint
from tailrace.backoff import Backoff
from tailrace.control import ControlFile, Moved
from tailrace.errors import (
    ConfigError,
    DiskFullError,
    LogMissingError,
    PositionLostError,
    ReplanError,
    SinkUnreachableError,
    StorageError,
    TailraceError,
)
from tailrace.log import retention
from tailrace.log.reader import Log
from tailrace.log.start import parse_start
from tailrace.log.store import LocalStore
from tailrace.pipeline import opening, reset, traces
from tailrace.pipeline import pipeline as path
from tailrace.pipeline.failures import translate_error
from tailrace.pipeline.progress import Progress
from tailrace.pipeline.source.offset import Offset
from tailrace.position import ORIGIN, Position

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from tailrace.checkpoint import StartRecord
    from tailrace.config import Config, Pipeline
    from tailrace.open_batch import OpenBatches, OpenProgress

_HEALTHY_S = 30.0
_POLL_S = 0.5
_CLOSE_S = 5.0
_CLOSE_POLL_S = 0.02
_SETTLE_S = 2.0
_RENEW_S = 30.0


class Runner:
    """Runs one pipeline until it is stopped, or until an error that a retry cannot fix."""

    def __init__(
        self,
        spark: SparkSession,
        config: Config,
        name: str,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spark = spark
        self._config = config
        self._name = name
        self._clock = clock
        self._pipeline: Pipeline = config.pipelines[name]
        self._stopping = threading.Event()
        self._events = structlog.get_logger().bind(pipeline=name)
        self._backoff = Backoff(clock=clock)
        self._query: StreamingQuery | None = None
        self._last_batch = -1
        self._delivered = False
        """Whether the query has delivered since it started."""
        self._noted: OpenProgress | None = None
        """The progress of an open batch that was last read."""
        self._settle_at = 0.0
        self._control_file = ControlFile(config.data, name)
        self._control = self._control_file.read()
        self._moves = self._control_file.moved().moves
        """How many moves were carried out or refused."""
        self._ended = True
        """Whether no task of an earlier query can be at work."""
        self.progress = Progress(name, clock=clock)
        self._traces = traces.of(config, name)
        self._traced = (ORIGIN, 0)
        """Where the last batch ended, and how many restarts there had been."""
        self.lost: BaseException | None = None
        """Why Spark itself has ended."""
        self._thread = threading.Thread(target=self._run, name=f"pipeline-{name}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end; `join` waits for it."""
        self._stopping.set()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread. Returns whether it has ended."""
        self._thread.join(timeout_s)
        ended = not self._thread.is_alive()
        if ended and self._traces is not None:
            self._traces.end()
        return ended

    def close(self, deadline: float) -> None:
        """Send the last spans, until a time of the monotonic clock."""
        if self._traces is not None:
            self._traces.close(deadline)
            self.progress.set(spans_lost=self._traces.lost)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._run_query()
            except ReplanError as error:
                self._events.info("pipeline.replanning", reason=str(error))
            except _ControlledError:
                self._events.info("pipeline.restarting", user=self._control.user)
            except Exception as error:
                if not isinstance(error, TailraceError) and not _spark_runs(self._spark):
                    self.lost = error
                    self._events.error("pipeline.spark_lost", reason=str(error))
                    self.progress.set_state("failed", "SPARK_LOST", str(error))
                    return
                if not self._retry(translate_error(error)):
                    return
        self.progress.set_state("stopped")

    def _run_query(self) -> None:
        """Start the query and watch it until it ends."""
        log = self._wait_for_log()
        if log is None:
            return
        self._move_if_requested()
        began = self._prepare(log)
        if not self._wait_while_paused():
            return
        # Starting a query takes seconds of a core. While the sink is unreachable, the other
        # pipelines need that core.
        opening.probe(self._pipeline.sink, name=self._name)
        self._open_batches.start_query()
        self._ended = False
        query = self._query = path.start(
            self._spark,
            self._name,
            self._pipeline,
            log=log,
            folders=self._folders,
            began=began,
            dsn=self._config.source.dsn.get_secret_value(),
            max_open_s=self._pipeline.max_open_s if self._has_spare_slot() else 0.0,
        )
        self._last_batch, self._delivered = -1, False
        reached = checkpoint.delivered(self._folders.checkpoint) or began.position
        self._traced = (reached, self._traced[1])
        self._noted = self._open_batches.progress()
        self.progress.start_query()
        started_at = self._clock()
        self._backoff.running()
        if self.progress.figures.state != "retrying":
            self.progress.set_state("running")
        try:
            while not self._stopping.wait(_POLL_S):
                self._check_control()
                self._read_progress(query)
                if not query.isActive:
                    raise translate_error(query.exception())
                # A query that has only started has not reached its sink yet.
                if self._delivered or self._clock() - started_at > _HEALTHY_S:
                    self.progress.set_state("running")
        finally:
            with contextlib.suppress(Py4JError, OSError, DiskFullError, StorageError):
                self._close_batch(query)
            with contextlib.suppress(Py4JError, OSError):
                query.stop()
                # The report of the last batch comes a moment after its commit.
                self._read_progress(query)
            self._ended = checkpoint.running(self._folders.checkpoint) is None

    def _check_control(self) -> None:
        """Raise if the operator wants the query to end."""
        if self._start_requested() or self._control.paused:
            raise _ControlledError

    def _wait_while_paused(self) -> bool:
        """Wait until the pipeline may run; False if it is to stop."""
        self._control = self._control_file.read()
        if self._control.paused:
            self._events.info(
                "pipeline.paused", user=self._control.paused_by, reason=self._control.pause_reason
            )
            self.progress.set_state("paused", "", self._control.reason)
        renewed_s = self._clock()
        while self._control.paused and not self._stopping.wait(_POLL_S):
            self._control = self._control_file.read()
            if self._control.moves != self._moves:
                raise _ControlledError
            if self._clock() - renewed_s > _RENEW_S:
                renewed_s = self._clock()
                self._renew_pin()
        return not self._stopping.is_set()

    def _renew_pin(self) -> None:
        """Keep what a paused pipeline has not delivered; capture warns of pins that are old."""
        store = LocalStore(self._config.log.path)
        pinned = retention.own_pin(store, self._name)
        if pinned is not None:
            with contextlib.suppress(DiskFullError):
                retention.pin(store, self._name, pinned, now=time.time())

    def _wait_for_restart(self) -> bool:
        """Wait until an operator wants another attempt; False if the pipeline is to stop."""
        while not self._stopping.wait(_POLL_S):
            if self._start_requested():
                return True
        return False

    def _start_requested(self) -> bool:
        """Whether an operator wants the query to start again, here or elsewhere in the log."""
        before, self._control = self._control, self._control_file.read()
        return self._control.restarts != before.restarts or self._control.moves != self._moves

    def _move_if_requested(self) -> None:
        """Continue elsewhere in the log, if an operator wants that and nothing is in its way."""
        control = self._control_file.read()
        if control.moves == self._moves:
            return
        refusal = ""
        try:
            if not self._ended:
                raise ConfigError("the last batch did not end in order; try again")
            position = Position.parse(control.position)
            reset.move(
                self._config, self._name, position, action=control.action, by=control.user,
                now=datetime.now(UTC),
            )  # fmt: skip
        except (ConfigError, PositionLostError) as error:
            refusal = f"{error}. {error.hint}" if error.hint else str(error)
            self._events.warning("pipeline.move_refused", user=control.user, reason=refusal)
        self._control_file.note_moved(Moved(moves=control.moves, refusal=refusal))
        self._moves = control.moves

    @property
    def _open_batches(self) -> OpenBatches:
        return checkpoint.open_batches(self._folders.checkpoint)

    def _has_spare_slot(self) -> bool:
        """Whether a batch may stay open: it keeps one of Spark's slots, and others need theirs."""
        needed = sum(pipeline.lanes for pipeline in self._config.pipelines.values())
        return self._spark.sparkContext.defaultParallelism > needed

    def _close_batch(self, query: StreamingQuery) -> None:
        """Let an open batch end in order, so that the next start need not replay it."""
        self._open_batches.request_close()
        deadline, folder = self._clock() + _CLOSE_S, self._folders.checkpoint
        while query.isActive and checkpoint.running(folder) and self._clock() < deadline:
            time.sleep(_CLOSE_POLL_S)

    @property
    def _folders(self) -> path.Folders:
        return path.Folders.of(self._config, self._name)

    def _prepare(self, log: Log) -> StartRecord:
        """Where the pipeline begins. The log keeps everything after that, also while the sink is
        unreachable."""
        folder, store = self._folders.checkpoint, LocalStore(self._config.log.path)
        pinned = retention.own_pin(store, self._name)
        if checkpoint.repair(folder, lambda: pinned):
            self._events.warning("pipeline.checkpoint_repaired", folder=str(folder))
        start = parse_start(self._pipeline.start)
        began = checkpoint.fix_start(folder, lambda: log.resolve(start), history=log.id)
        if pinned is None:
            # Of another log the position means nothing: keep what a reset may ask for.
            own = began.log_id == log.id
            kept = (checkpoint.delivered(folder) or began.position) if own else log.earliest()
            retention.pin(store, self._name, kept, now=time.time())
        checkpoint.check_history(folder, began, log)
        return began

    def _wait_for_log(self) -> Log | None:
        """The log, after capture has created it; None if the pipeline stops first."""
        while not self._stopping.wait(0 if self._query is None else 0.1):
            try:
                return Log.open(self._config.log.path)
            except (ConfigError, LogMissingError, FileNotFoundError):
                self._stopping.wait(0.2)
        return None

    def _read_progress(self, query: StreamingQuery) -> None:
        for batch in _finished_batches(query):
            if batch["batchId"] > self._last_batch:
                self._last_batch, self._delivered = batch["batchId"], True
                self.progress.add_batch(batch, end := self._end_of(batch))
                self._trace(batch, end)
        noted = self._open_batches.progress()
        if noted is not None and noted != self._noted:
            self._delivered, self._noted = self._delivered or noted.beyond(self._noted), noted
            self.progress.add_open(noted)
        if noted is not None and self._clock() >= self._settle_at:
            self._settle_at = self._clock() + _SETTLE_S
            self._settle(noted)

    def _trace(self, report: Mapping[str, Any], end: Position) -> None:
        """Have a span of a finished batch sent."""
        if self._traces is not None:
            (after, before), restarts = self._traced, self.progress.figures.restarts
            attempts = 1 + restarts - before
            self._traces.report(self._name, report, after=after, upto=end, attempts=attempts)
            self._traced = (end, restarts)
            self.progress.set(spans_lost=self._traces.lost)

    def _settle(self, noted: OpenProgress) -> None:
        """Let the log remove what an open batch has delivered."""
        if noted.batch != str(checkpoint.running(self._folders.checkpoint)):
            return
        store, reached = LocalStore(self._config.log.path), Position.parse(noted.reached)
        pinned = retention.own_pin(store, self._name)
        if pinned is None or pinned < reached:
            # If not even a full disk's old files can be overwritten, the log keeps more.
            with contextlib.suppress(DiskFullError):
                self._open_batches.settle(noted)
                retention.pin(store, self._name, reached, now=time.time())

    def _end_of(self, batch: Mapping[str, Any]) -> Position:
        """Where a batch ended."""
        end = Offset.parse(batch["sources"][0]["endOffset"])
        closed = self._open_batches.closed(end.open_batch) if end.open else None
        return closed or end.position

    def _retry(self, error: TailraceError) -> bool:
        """Wait before a retry; False if there is none."""
        if self._stopping.is_set():
            self.progress.set_state("stopped")
            return False
        if not error.transient:
            self._events.error("pipeline.failed", code=error.code, reason=str(error))
            self.progress.set_state("failed", error.code, str(error))
            # A task that fails has ended, and a batch that is open has one.
            self._ended = True
            return self._wait_for_restart()
        delay_s = self._backoff.next_s()
        self._events.warning(
            "pipeline.retrying", code=error.code, reason=str(error), retry_in_s=round(delay_s, 1)
        )
        self.progress.set_state("retrying", error.code, str(error))
        self.progress.add(restarts=1, reconnects=isinstance(error, SinkUnreachableError))
        self._wait(delay_s)
        return True

    def _wait(self, delay_s: float) -> None:
        """Wait before a retry; a pause or a requested restart ends the wait."""
        until_s = self._clock() + delay_s
        while self._clock() < until_s and not self._stopping.wait(
            min(_POLL_S, max(until_s - self._clock(), 0))
        ):
            try:
                self._check_control()
            except _ControlledError:
                return


class _ControlledError(Exception):
    """An operator wants the query to end."""


def _finished_batches(query: StreamingQuery) -> Iterator[dict[str, Any]]:
    """Spark's reports of finished micro-batches, oldest first."""
    for report in query.recentProgress:
        batch: dict[str, Any] = json.loads(report.json)
        # Reports of an idle query have no addBatch.
        if "addBatch" in batch["durationMs"]:
            yield batch


def _spark_runs(spark: SparkSession) -> bool:
    """Whether Spark still answers: an error of one pipeline does not end the others."""
    try:
        return not spark.sparkContext._jsc.sc().isStopped()
    except (Py4JError, OSError, AttributeError):
        return False
