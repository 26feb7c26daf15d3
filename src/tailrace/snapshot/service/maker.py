"""One snapshot from its beginning to its end.

The table is published in waves of a few stretches. After each the record is saved, so a crash costs
a wave at most; messages of that wave which are in the stream already are not published twice. When
the exported snapshot is gone, nothing that was published fits anything new: where the format allows
it a new snapshot takes its place, under an id of its own, and says so; else it has failed.
"""

from __future__ import annotations

import base64
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from tailrace import checkpoint
from tailrace.encode.compression import Compression
from tailrace.errors import (
    PostgresRefusedError,
    PostgresUnreachableError,
    Retry,
    SchemaChangedError,
    SinkError,
    SinkRefusedError,
    TailraceError,
    UnexpectedError,
)
from tailrace.jetstream.bulk.snapshot_messages import SnapshotPublisher
from tailrace.postgres.joining import Joining
from tailrace.snapshot.export import imported
from tailrace.snapshot.formats import Copied, CreekFormat, Made, Rows
from tailrace.snapshot.job import SnapshotJob, Wave
from tailrace.snapshot.keeper import keep, release
from tailrace.snapshot.service import dictionary
from tailrace.snapshot.service.bound import approximate_rows, bound
from tailrace.snapshot.table import described, stretches

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable
    from pathlib import Path

    from tailrace.config import Config, NatsSink, Pipeline, Snapshots
    from tailrace.jetstream.bulk.snapshot_messages import SnapshotMessage
    from tailrace.position import Lsn
    from tailrace.snapshot.export import Exported
    from tailrace.snapshot.formats import Format
    from tailrace.snapshot.job import Published
    from tailrace.snapshot.service.catalog import PublishedTables
    from tailrace.snapshot.service.record import Record

    Publish = Callable[[SnapshotJob, Wave], Published]

_HOLD_S = 180.0
_BACK_OFF_S = (1.0, 2.0, 5.0, 10.0, 20.0)
_FAULTS = 4
"""How often a failure that nobody has a name for is tried again: other snapshots wait behind it."""


class Maker:
    """Makes snapshots of one pipeline's tables, one at a time."""

    def __init__(
        self,
        config: Config,
        name: str,
        catalog: PublishedTables,
        publish: Publish,
        stopping: threading.Event,
    ) -> None:
        pipeline: Pipeline = config.pipelines[name]
        assert pipeline.snapshots is not None
        self._name = name
        self.folder: Path = config.data / "snapshots" / name
        self._config = config
        self._pipeline = pipeline
        self._settings: Snapshots = pipeline.snapshots
        self._sink = _sink(pipeline)
        self._catalog = catalog
        self._joining = Joining(self._dsn, config.source.publication, self.folder)
        self._publish = publish
        self._stopping = stopping
        self._events = structlog.get_logger()

    def run(self, record: Record) -> None:
        """Make the snapshot; returns when it is over, or we are to stop."""
        failures = 0
        while not self._stopping.is_set():
            done = record.done
            try:
                self._advance(record)
            except TailraceError as error:
                record.error = str(error)
                failures = 1 if record.done > done else failures + 1
                if self._final(record, error, failures):
                    self.give_up(record, error)
                    return
                delay_s = _BACK_OFF_S[min(failures, len(_BACK_OFF_S)) - 1]
                self._events.warning(
                    "snapshot.retrying", id=record.id, code=error.code, reason=str(error),
                    again_in_s=delay_s,
                )  # fmt: skip
                self._stopping.wait(delay_s)
            else:
                return

    def give_up(self, record: Record, error: TailraceError) -> None:
        """Tell whoever waits for the rest that it will not come."""
        record.error = str(error)
        self._events.error(
            "snapshot.failed", id=record.id, table=str(record.table),
            code=error.code, reason=str(error), hint=error.hint,
        )  # fmt: skip
        self._release(record.snapshot)
        self._end(record)
        if self._told(record, self._format(record).failed(error)):
            record.forget(self.folder)
            record.state, record.ended_at = "failed", time.time()

    def _told(self, record: Record, parcel: SnapshotMessage) -> bool:
        """Publish a last message, however long that takes; False if we are to stop before that."""
        failures = 0
        while True:
            try:
                self._send(parcel)
            except TailraceError as refusal:
                self._events.warning("snapshot.untold", id=record.id, reason=str(refusal))
                if refusal.retry is Retry.NEVER:
                    return True
                if self._stopping.wait(_BACK_OFF_S[min(failures, len(_BACK_OFF_S) - 1)]):
                    return False
                failures += 1
            else:
                return True

    def _release(self, snapshot: Exported | None) -> None:
        """Let PostgreSQL clean up, and the table be altered, without waiting for the keeper."""
        if snapshot is not None:
            try:
                release(self._dsn, snapshot)
            except TailraceError as error:
                self._events.warning("snapshot.kept", name=snapshot.name, reason=str(error))

    def _final(self, record: Record, error: TailraceError, failures: int) -> bool:
        """Whether trying again is of no use. A snapshot that is gone may have a successor."""
        if isinstance(error, UnexpectedError):
            return failures > _FAULTS
        if error.transient:
            return False
        if record.snapshot is None or self._lives(record.snapshot):
            return True
        try:
            return not self._replaceable(record)
        except SinkError:
            return False

    def _replaceable(self, record: Record) -> bool:
        """Whether another snapshot can do what this one was to do."""
        form = self._format(record)
        if form.replaceable:
            return True
        with SnapshotPublisher(self._sink, name=form.id) as parcels:
            return not form.headed(parcels)

    def _lives(self, snapshot: Exported) -> bool:
        try:
            with imported(self._dsn, snapshot):
                return True
        except TailraceError:
            return False

    def _advance(self, record: Record) -> None:
        """From wherever it is to its end."""
        if record.snapshot is not None and self._ended(record):
            self._complete(record)
            return
        edition = self._continued(record)
        again = edition is not None
        if edition is None:
            if not self._joining.wait(record.table, self._stopping):
                return
            edition = self._begun(record)
        record.state, record.error = "running", ""
        record.begun_at = record.begun_at or time.time()
        self._open(record, edition)
        while record.done < len(record.stretches):
            if self._stopping.is_set():
                return
            self._advance_by(record, edition, again=again)
            again = False
        if not self._ended(record):
            self._end(record)
            made = Made(chunks=record.chunks, rows=record.rows, supersedes=record.supersedes)
            self._send(edition.format.tail(edition, made))
        self._complete(record)

    def _end(self, record: Record) -> None:
        """The last message follows: who asks from here on may miss it, and gets another one."""
        record.state = "ending"
        record.save(self.folder)

    def _ended(self, record: Record) -> bool:
        """Whether the last message is there; we may have died right behind it."""
        if record.done < len(record.stretches):
            return False
        form = self._format(record)
        with SnapshotPublisher(self._sink, name=form.id) as parcels:
            return form.ended(parcels)

    def _complete(self, record: Record) -> None:
        record.forget(self.folder)
        self._release(record.snapshot)
        record.state, record.ended_at = "complete", time.time()
        self._events.info(
            "snapshot.complete", id=record.id, table=str(record.table), rows=record.rows,
            chunks=record.chunks, seconds=round(time.time() - record.requested_at, 1),
        )  # fmt: skip

    def _advance_by(self, record: Record, edition: SnapshotJob, *, again: bool) -> None:
        """By a wave."""
        wave = Wave(
            stretches=record.stretches[record.done : record.done + record.parallel],
            number=record.number,
            after=record.last,
            again=again,
        )
        found = self._publish(edition, wave)
        record.done += len(wave.stretches)
        record.number = found.beyond
        record.last = found.last
        record.chunks += found.chunks
        record.rows += found.rows
        record.bytes += found.bytes
        record.save(self.folder)

    def _continued(self, record: Record) -> SnapshotJob | None:
        """The edition of a record whose exported snapshot still lives."""
        if record.snapshot is None:
            return None
        try:
            return self._same(record, record.snapshot)
        except (PostgresRefusedError, SchemaChangedError):
            if not self._replaceable(record):
                raise
        self._events.warning("snapshot.gone", id=record.id, table=str(record.table))
        self._release(record.snapshot)
        record.forget(self.folder)
        record.begin_anew(new_id() if self._format(record).replaceable else record.id)
        return None

    def _same(self, record: Record, snapshot: Exported) -> SnapshotJob:
        """The edition as it was before."""
        with imported(self._dsn, snapshot):
            pass
        edition = self._edition(record, snapshot)
        if edition.format.fingerprint(edition) != record.fingerprint:
            raise SchemaChangedError(
                f"messages of {record.table} are not what they were when its snapshot began",
                hint="Ask for another one.",
            )
        return edition

    def _begun(self, record: Record) -> SnapshotJob:
        """Take the snapshot. It is the record's once all is there that a crash goes on with."""
        snapshot = keep(self._dsn, record.table, idle_s=_HOLD_S)
        try:
            edition = self._prepared(record, snapshot)
            # Consumers follow the changes from before the snapshot on: the stream has to be there.
            SnapshotPublisher(self._pipeline.nats, name=self._name, owner=self._name).close()
            with SnapshotPublisher(self._sink, name=record.id) as parcels:
                record.last = parcels.last()
        except BaseException:
            self._release(snapshot)
            raise
        record.fingerprint = edition.format.fingerprint(edition)
        record.parallel = self._settings.parallel
        record.snapshot = snapshot
        record.save(self.folder)
        self._events.info("snapshot.begun", id=record.id, table=str(record.table))
        return edition

    def _prepared(self, record: Record, snapshot: Exported) -> SnapshotJob:
        edition = self._edition(record, snapshot)
        with imported(self._dsn, snapshot) as connection:
            record.stretches = stretches(
                connection,
                edition.table,
                most_bytes=self._settings.stretch_bytes,
                together=self._settings.parallel,
            )
            form = edition.format
            if isinstance(form, Rows) and form.packing is not None:
                packing = dictionary.train(connection, edition, form, record.stretches)
                form = replace(form, packing=packing)
                edition = replace(edition, format=form)
                record.dictionary = base64.b64encode(packing.dictionary).decode()
                dictionary.store(self._sink, form)
        return edition

    def _edition(self, record: Record, snapshot: Exported) -> SnapshotJob:
        relation, listed = self._catalog.published(record.table)
        with imported(self._dsn, snapshot) as connection:
            table = described(connection, relation)
        return SnapshotJob(
            dsn=self._dsn,
            snapshot=snapshot,
            table=table,
            conditions=(f"({listed.row_filter})",) if listed.row_filter else (),
            sink=self._sink,
            format=self._format(record),
        )

    def _format(self, record: Record) -> Format:
        if record.form == "creek":
            return CreekFormat(id=record.id, table=record.table, topic=record.topic)
        packed = self._settings.compression == "zstd"
        encoding = self._pipeline.format
        assert encoding != "avro"
        return (Rows if record.form == "rows" else Copied)(
            id=record.id,
            table=record.table,
            encoding=encoding,
            chunk_rows=self._settings.chunk_rows,
            packing=Compression(base64.b64decode(record.dictionary)) if packed else None,
        )

    def _open(self, record: Record, edition: SnapshotJob) -> None:
        """Publish what comes before all rows, unless it is there."""
        form = edition.format
        with SnapshotPublisher(self._sink, name=form.id) as parcels:
            if form.headed(parcels):
                return
        if record.done:
            raise SinkRefusedError(
                f"stream {self._sink.stream.name} has lost the beginning of snapshot {form.id}",
                hint="Ask for another one; look at the stream's limits.",
            )
        relation, snapshot = edition.table.relation, edition.snapshot
        with imported(self._dsn, snapshot) as connection:
            lsn = self._bound(record, edition)
            head = form.head(edition, lsn, approximate_rows(connection, relation))
        if head is not None:
            self._send(head)

    def _bound(self, record: Record, edition: SnapshotJob) -> Lsn:
        """Up to where the snapshot has all changes; if there is no such place, it is let go."""
        relation, snapshot = edition.table.relation, edition.snapshot
        begun = checkpoint.began(self._config.data / "checkpoints" / self._name)
        try:
            return bound(self._config.log.path, relation, snapshot, begun, self._stopping)
        except PostgresUnreachableError:
            self._release(record.snapshot)
            record.begin_anew(record.id)
            record.save(self.folder)
            raise

    def _send(self, parcel: SnapshotMessage) -> None:
        with SnapshotPublisher(self._sink, name=self._name) as parcels:
            parcels.send(parcel)
            parcels.flush()

    @property
    def _dsn(self) -> str:
        return self._config.source.dsn.get_secret_value()


def _sink(pipeline: Pipeline) -> NatsSink:
    """The pipeline's NATS server with the stream that takes its snapshots."""
    assert pipeline.snapshots is not None
    subject = "init.snap.{table}.x.0"
    if pipeline.shape == "creek":
        subject = f"{pipeline.namespace}.{{database}}.snap.{{schema}}.{{table}}.x"
    changed = {"stream": pipeline.snapshots.stream, "subject": subject, "atomic": "none"}
    return pipeline.nats.model_copy(update=changed)


def new_id() -> str:
    """An id that no earlier snapshot has."""
    return f"snap-{time.time_ns() // 1_000_000}"
