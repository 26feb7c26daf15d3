"""Runs one snapshot from start to end.

The maker publishes the table in waves of a few stretches and saves the record after each wave. A
crash so costs at most one wave; messages of that wave that are already in the stream are not
published twice. If the exported snapshot is lost, published chunks do not fit a new snapshot. A new
snapshot then replaces the old one under a new id and names it in its metadata, where the format
allows that; otherwise the snapshot fails.

    queued -> running -> ending -> complete
                 \\         \\-> failed
                  \\-> queued again, if the exported snapshot is lost and can be replaced
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import structlog

from tailrace import checkpoint
from tailrace.backoff import Backoff
from tailrace.errors import (
    ConfigError,
    SchemaChangedError,
    SinkError,
    SinkRefusedError,
    SnapshotLostError,
    TailraceError,
    UnexpectedError,
)
from tailrace.jetstream.bulk.snapshot_messages import SnapshotPublisher
from tailrace.log.reader import Log
from tailrace.postgres.joining import JoinedTables
from tailrace.snapshot.export import Bound, imported
from tailrace.snapshot.formats import SnapshotTotals
from tailrace.snapshot.job import Wave
from tailrace.snapshot.keeper import keep, release
from tailrace.snapshot.service.bound import (
    approximate_rows,
    bound,
    check_visible,
    wait_for_log,
)
from tailrace.snapshot.service.jobs import JobFactory
from tailrace.snapshot.timeline import check_timeline

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable
    from pathlib import Path

    from tailrace.config import Config
    from tailrace.jetstream.bulk.snapshot_messages import SnapshotMessage
    from tailrace.position import Position
    from tailrace.snapshot.export import Exported
    from tailrace.snapshot.job import Published, SnapshotJob
    from tailrace.snapshot.service.catalog import PublishedTables
    from tailrace.snapshot.service.record import Record

    Publish = Callable[[SnapshotJob, Wave], Published]

_KEEP_S = 180.0
"""How long the keeper holds an unused snapshot: enough for a restart after a crash."""
_FIRST_RETRY_S, _MAX_RETRY_S = 1.0, 20.0
_MAX_UNEXPECTED = 4
"""Retries of an unexpected error, at most: other snapshots wait for this one."""


class Maker:
    """Runs the snapshots of one pipeline's tables, one at a time. `now` is Unix time."""

    def __init__(
        self,
        config: Config,
        name: str,
        catalog: PublishedTables,
        publish: Publish,
        stopping: threading.Event,
        *,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._config = config
        self._name = name
        self._pipeline = config.pipelines[name]
        self.folder: Path = config.data / "snapshots" / name
        self._jobs = JobFactory(config, name, catalog)
        self._sink = self._jobs.sink
        self._dsn = config.source.dsn.get_secret_value()
        self._joined = JoinedTables(self._dsn, config.source.publication, self.folder)
        self._publish = publish
        self._stopping = stopping
        self._now = now
        self._events = structlog.get_logger()

    def run(self, record: Record) -> None:
        """Run a snapshot; returns when it has finished, or when the service stops."""
        backoff = Backoff(first_s=_FIRST_RETRY_S, max_s=_MAX_RETRY_S)
        while not self._stopping.is_set():
            done = record.done
            try:
                self._advance(record)
            except Exception as error:
                if self._stopping.is_set():
                    # Spark may have stopped during the wave. The next start resumes the snapshot.
                    self._events.info("snapshot.interrupted", id=record.id, reason=str(error))
                    return
                if not isinstance(error, TailraceError):
                    raise
                record.error = str(error)
                if record.done > done:
                    backoff.reset()
                delay_s = backoff.next_s()
                if self._is_final(record, error, backoff.failures):
                    self.give_up(record, error)
                    return
                self._events.warning(
                    "snapshot.retrying", id=record.id, code=error.code, reason=str(error),
                    retry_in_s=delay_s,
                )  # fmt: skip
                self._stopping.wait(delay_s)
            else:
                return

    def give_up(self, record: Record, error: TailraceError) -> None:
        """End a snapshot as failed. Clients that wait for it get the error as its last message."""
        record.error = str(error)
        self._events.error(
            "snapshot.failed", id=record.id, table=str(record.table),
            code=error.code, reason=str(error), hint=error.hint,
        )  # fmt: skip
        self._release(record.snapshot)
        self._set_ending(record)
        if self._publish_error(record, error):
            record.remove(self.folder)
            record.state, record.ended_at = "failed", self._now()

    def _publish_error(self, record: Record, cause: TailraceError) -> bool:
        """Publish the error until it is stored or the sink refuses it; False if stopped before."""
        backoff = Backoff(first_s=_FIRST_RETRY_S, max_s=_MAX_RETRY_S)
        form = self._jobs.format(record)
        while True:
            try:
                with SnapshotPublisher(self._sink, name=form.id) as publisher:
                    publisher.send(form.failed(cause, begun=form.has_head(publisher)))
                    publisher.flush()
            except TailraceError as error:
                self._events.warning(
                    "snapshot.error_not_published", id=record.id, code=error.code,
                    reason=str(error),
                )  # fmt: skip
                if not error.transient:
                    return True
                if self._stopping.wait(backoff.next_s()):
                    return False
            else:
                return True

    def _release(self, snapshot: Exported | None) -> None:
        """End the exported snapshot now: it blocks ALTER TABLE and holds back vacuum."""
        if snapshot is not None:
            try:
                release(self._dsn, snapshot)
            except TailraceError as error:
                self._events.warning(
                    "snapshot.release_failed", name=snapshot.name, reason=str(error)
                )

    def _is_final(self, record: Record, error: TailraceError, failures: int) -> bool:
        """Whether the snapshot fails with this error.

        error                                             final
        unexpected                                        after _MAX_UNEXPECTED retries in a row
        the exported snapshot is lost, before its record  no
        the exported snapshot is lost                     if no new snapshot can replace it
        transient                                         no
        other, the exported snapshot still exists         yes
        other, the exported snapshot is lost, too         if no new snapshot can replace it
        """
        if isinstance(error, UnexpectedError):
            return failures > _MAX_UNEXPECTED
        if isinstance(error, SnapshotLostError):
            if record.snapshot is None:
                return False
        elif error.transient:
            return False
        elif record.snapshot is None or self._exists(record.snapshot):
            return True
        try:
            return not self._is_replaceable(record)
        except SinkError:
            return False

    def _is_replaceable(self, record: Record) -> bool:
        """Whether a new snapshot can replace this one."""
        form = self._jobs.format(record)
        if form.replaceable:
            return True
        with SnapshotPublisher(self._sink, name=form.id) as publisher:
            return not form.has_head(publisher)

    def _exists(self, snapshot: Exported) -> bool:
        try:
            with imported(self._dsn, snapshot):
                return True
        except TailraceError:
            return False

    def _advance(self, record: Record) -> None:
        """Take a snapshot from its present state to its end; returns early if stopped."""
        if record.snapshot is not None and self._has_tail(record):
            self._complete(record)
            return
        job = self._resume(record)
        again = job is not None
        if job is None:
            if not self._joined.wait_for_writers(record.table, self._stopping):
                return
            job = self._start(record)
        record.state, record.error = "running", ""
        record.begun_at = record.begun_at or self._now()
        self._publish_head(record, job)
        while record.done < len(record.stretches):
            if self._stopping.is_set():
                return
            self._publish_wave(record, job, again=again)
            again = False
        if not self._has_tail(record):
            self._check_timeline(job.snapshot)
            self._set_ending(record)
            totals = SnapshotTotals(
                chunks=record.chunks, rows=record.rows, supersedes=record.supersedes
            )
            self._send(job.format.tail(job, totals))
        self._complete(record)

    def _check_timeline(self, snapshot: Exported) -> None:
        """Raise an error if the rows are of a server that is no longer the primary.

        Consumers continue with the changes of the log. A row that it will never have would stay.
        The log gets a moment to reach the snapshot; while capture is stopped, only the timeline
        that it had decides.
        """
        try:
            log = Log.open(self._config.log.path)
        except ConfigError:
            # Nothing is captured yet.
            return
        wait_for_log(log, snapshot, self._stopping)
        with imported(self._dsn, snapshot) as connection:
            check_timeline(connection, log)

    def _set_ending(self, record: Record) -> None:
        """Note that the last message follows: a later request does not share this snapshot.

        A client that subscribes after the last message would wait for it in vain.
        """
        record.state = "ending"
        record.save(self.folder)

    def _has_tail(self, record: Record) -> bool:
        """Whether the last message is in the stream: a crash may have followed it at once."""
        if record.done < len(record.stretches):
            return False
        form = self._jobs.format(record)
        with SnapshotPublisher(self._sink, name=form.id) as publisher:
            return form.has_tail(publisher)

    def _complete(self, record: Record) -> None:
        record.remove(self.folder)
        self._release(record.snapshot)
        record.state, record.ended_at = "complete", self._now()
        self._events.info(
            "snapshot.complete", id=record.id, table=str(record.table), rows=record.rows,
            chunks=record.chunks, seconds=round(record.ended_at - record.requested_at, 1),
        )  # fmt: skip

    def _publish_wave(self, record: Record, job: SnapshotJob, *, again: bool) -> None:
        wave = Wave(
            stretches=record.stretches[record.done : record.done + record.parallel],
            number=record.number,
            after=record.last,
            again=again,
        )
        result = self._publish(job, wave)
        record.done += len(wave.stretches)
        record.number = result.beyond
        record.last = result.last
        record.chunks += result.chunks
        record.rows += result.rows
        record.bytes += result.bytes
        record.save(self.folder)

    def _resume(self, record: Record) -> SnapshotJob | None:
        """The job of a snapshot that was started before; None if a new one must be started."""
        if record.snapshot is None:
            return None
        try:
            return self._jobs.resume(record, record.snapshot)
        except (SnapshotLostError, SchemaChangedError) as error:
            if not self._is_replaceable(record):
                raise
            reason = str(error)
        self._events.warning("snapshot.lost", id=record.id, table=str(record.table), reason=reason)
        self._release(record.snapshot)
        replaceable = self._jobs.format(record).replaceable
        record.restart(new_id(self._now()) if replaceable else record.id, self.folder)
        return None

    def _start(self, record: Record) -> SnapshotJob:
        """Take the snapshot. The record gets it when everything is known that a resume needs."""
        snapshot = keep(self._dsn, record.table, idle_s=_KEEP_S)
        try:
            job = self._jobs.create(record, snapshot)
            check_visible(self._config.log.path, job.table.relation, snapshot, self._began())
            # Consumers read changes from before the snapshot: the stream of changes must exist.
            SnapshotPublisher(self._pipeline.jetstream, name=self._name, owner=self._name).close()
            with SnapshotPublisher(self._sink, name=record.id) as publisher:
                record.last = publisher.last()
        except BaseException:
            self._release(snapshot)
            raise
        record.snapshot = snapshot
        record.save(self.folder)
        self._events.info("snapshot.started", id=record.id, table=str(record.table))
        return job

    def _publish_head(self, record: Record, job: SnapshotJob) -> None:
        """Publish the message before all rows, unless it is in the stream."""
        form = job.format
        with SnapshotPublisher(self._sink, name=form.id) as publisher:
            if form.has_head(publisher):
                return
        if record.done:
            raise SinkRefusedError(
                f"stream {self._sink.stream.name} no longer has the first message of snapshot "
                f"{form.id}",
                hint="Raise the limits of the stream, then request another snapshot.",
            )
        with imported(self._dsn, job.snapshot) as connection:
            bound = self._bound(record, job)
            head = form.head(job, bound, approximate_rows(connection, job.table.relation))
        if head is not None:
            self._send(head)

    def _bound(self, record: Record, job: SnapshotJob) -> Bound:
        """The LSN up to which the snapshot contains all changes, and when the others come.

        If there is none, the snapshot is released, and the next attempt takes a new one.
        """
        relation = job.table.relation
        try:
            return bound(
                self._config.log.path, relation, job.snapshot, self._began(), self._stopping
            )
        except SnapshotLostError:
            self._release(record.snapshot)
            record.restart(record.id, self.folder)
            raise

    def _began(self) -> Position | None:
        """The start of the pipeline."""
        return checkpoint.start(checkpoint.folder_of(self._config.data, self._name))

    def _send(self, message: SnapshotMessage) -> None:
        with SnapshotPublisher(self._sink, name=self._name) as publisher:
            publisher.send(message)
            publisher.flush()


def new_id(now: float) -> str:
    """The id of a snapshot that is requested at this time.

    >>> new_id(1794743604.038)
    'snap-1794743604038'
    """
    return f"snap-{round(now * 1000)}"
