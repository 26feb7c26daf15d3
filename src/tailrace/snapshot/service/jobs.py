"""Creates snapshot jobs: for a new snapshot, or for a record that resumes after a failure.

A job holds everything that publishing needs. The record holds what is needed to create the same job
again after a crash.
"""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import TYPE_CHECKING

from tailrace.encode.compression import Compression
from tailrace.errors import SchemaChangedError
from tailrace.sinks.contract import Lane
from tailrace.snapshot.catalog import described, stretches
from tailrace.snapshot.export import imported
from tailrace.snapshot.formats import Copied, CreekFormat, Rows
from tailrace.snapshot.job import SnapshotJob
from tailrace.snapshot.service import dictionary
from tailrace.snapshot.service.streams import snapshot_sink

if TYPE_CHECKING:
    from tailrace.config import Config, Pipeline, Snapshots
    from tailrace.snapshot.export import Exported
    from tailrace.snapshot.formats import Format
    from tailrace.snapshot.service.catalog import PublishedTables
    from tailrace.snapshot.service.record import Record


class JobFactory:
    """Creates the jobs of one pipeline's snapshots."""

    def __init__(self, config: Config, name: str, catalog: PublishedTables) -> None:
        pipeline: Pipeline = config.pipelines[name]
        assert pipeline.snapshots is not None
        self._owner = Lane(pipeline=name, slot=config.source.slot).owner
        self._pipeline = pipeline
        self._settings: Snapshots = pipeline.snapshots
        self._catalog = catalog
        self._dsn = config.source.dsn.get_secret_value()
        self.sink = snapshot_sink(pipeline)

    def create(self, record: Record, snapshot: Exported) -> SnapshotJob:
        """The job of a new snapshot. Sets the record's stretches, dictionary and fingerprint."""
        job = self._job(record, snapshot)
        with imported(self._dsn, snapshot) as connection:
            record.stretches = stretches(
                connection,
                job.table,
                max_bytes=self._settings.stretch_bytes,
                together=self._settings.parallel,
            )
            form = job.format
            if isinstance(form, Rows) and form.compression is not None:
                compression = dictionary.train(connection, job, form, record.stretches)
                form = replace(form, compression=compression)
                job = replace(job, format=form)
                record.dictionary = base64.b64encode(compression.dictionary).decode()
                dictionary.store(self.sink, form)
        record.parallel = self._settings.parallel
        record.fingerprint = job.format.fingerprint(job)
        return job

    def resume(self, record: Record, snapshot: Exported) -> SnapshotJob:
        """The job of a record whose exported snapshot still exists.

        Raises SnapshotLostError if the exported snapshot is gone, SchemaChangedError if its
        messages would differ from those that are already in the stream.
        """
        with imported(self._dsn, snapshot):
            pass
        job = self._job(record, snapshot)
        if job.format.fingerprint(job) != record.fingerprint:
            raise SchemaChangedError(
                f"the columns or the format of {record.table} have changed since its snapshot "
                f"{record.id} was started",
                hint="Request another snapshot.",
            )
        return job

    def format(self, record: Record) -> Format:
        """The format of a record's messages."""
        if record.form == "creek":
            return CreekFormat(
                id=record.id, table=record.table, pipeline=self._owner, topic=record.topic
            )
        compressed = self._settings.compression == "zstd"
        encoding = self._pipeline.format
        assert encoding != "avro"
        assert encoding != "avro-plain"
        return (Rows if record.form == "rows" else Copied)(
            id=record.id,
            table=record.table,
            pipeline=self._owner,
            encoding=encoding,
            chunk_rows=self._settings.chunk_rows,
            compression=Compression(base64.b64decode(record.dictionary)) if compressed else None,
        )

    def _job(self, record: Record, snapshot: Exported) -> SnapshotJob:
        relation, published = self._catalog.published(record.table)
        with imported(self._dsn, snapshot) as connection:
            table = described(connection, relation)
        return SnapshotJob(
            dsn=self._dsn,
            snapshot=snapshot,
            table=table,
            conditions=(f"({published.row_filter})",) if published.row_filter else (),
            sink=self.sink,
            format=self.format(record),
        )
