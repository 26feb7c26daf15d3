"""One snapshot from its beginning to its end.

The table is published in waves of a few stretches. After each the record is saved, so a crash costs
a wave at most; chunks of that wave which are in the stream already are not published twice. When
the exported snapshot is gone, nothing that was published fits anything new: a new snapshot takes
its place, under an id of its own, and says so.
"""

from __future__ import annotations

import base64
import contextlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import orjson
import ormsgpack
import structlog

from tailrace.capture.connection import connect
from tailrace.capture.publication import TableName, read_publication
from tailrace.capture.relations import read_published
from tailrace.encode.compression import Compression
from tailrace.encode.subject import table_path
from tailrace.engine.snapshots import dictionary
from tailrace.engine.snapshots.joining import Joining
from tailrace.errors import ConfigError, RefusedError, Retry, TailraceError, UnreachableError
from tailrace.sinks.nats import Parcel, Parcels
from tailrace.snapshot.edition import Edition, meta_prefix
from tailrace.snapshot.exported import imported
from tailrace.snapshot.keeper import keep, release
from tailrace.snapshot.table import described, stretches
from tailrace.tables import Tables

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from psycopg import Connection

    from tailrace.capture.publication import PublicationState, PublishedTable
    from tailrace.config import Config, Pipeline, Snapshots
    from tailrace.engine.snapshots.record import Record
    from tailrace.schema import Relation
    from tailrace.snapshot.edition import Published
    from tailrace.snapshot.exported import Exported

    Publish = Callable[..., Published]

_HOLD_S = 180.0
# Catalog functions lock the tables they tell of.
_LOCK_TIMEOUT = "SET lock_timeout TO '2s'"
_BACK_OFF_S = (1.0, 2.0, 5.0, 10.0, 20.0)


class Maker:
    """Makes snapshots of one pipeline's tables, one at a time."""

    def __init__(
        self, config: Config, name: str, publish: Publish, stopping: threading.Event
    ) -> None:
        pipeline: Pipeline = config.pipelines[name]
        assert pipeline.snapshots is not None
        self._name = name
        self.folder: Path = config.data / "snapshots" / name
        self._config = config
        self._pipeline = pipeline
        self._settings: Snapshots = pipeline.snapshots
        self._sink = pipeline.sink.model_copy(
            update={
                "stream": self._settings.stream,
                "subject": "init.snap.{table}.x.0",
                "atomic": "none",
            }
        )
        self._tables: dict[str, TableName] = {}
        self._joining = Joining(self._dsn, config.source.publication, self.folder)
        self._publish = publish
        self._stopping = stopping
        self._events = structlog.get_logger()

    def tables(self) -> dict[str, TableName]:
        """What may be asked for, by its name in subjects.

        While PostgreSQL can not tell, what it told last: it reads no publication whose tables
        somebody alters, and whoever asks shall have an answer.
        """
        wanted = Tables(self._pipeline.tables)
        try:
            with self._source() as connection:
                names = [listed.table for listed in self._publication(connection).tables]
        except UnreachableError:
            if not self._tables:
                raise
        else:
            self._tables = {
                table_path(name.namespace, name.name): name
                for name in names
                if wanted.match(name.namespace, name.name)
            }
        return self._tables

    @contextlib.contextmanager
    def _source(self) -> Iterator[Connection]:
        timeout_s = self._config.capture.connect_timeout_s
        with contextlib.closing(connect(self._dsn, connect_timeout_s=timeout_s)) as connection:
            connection.execute(_LOCK_TIMEOUT)
            yield connection

    def _publication(self, connection: Connection) -> PublicationState:
        name = self._config.source.publication
        state = read_publication(connection, name)
        if state is None:
            raise RefusedError(f"there is no publication {name!r}")
        return state

    def _published(self, table: TableName) -> tuple[Relation, PublishedTable]:
        """The table as the stream describes it, and what the publication holds back of it."""
        with self._source() as connection:
            state = self._publication(connection)
            relations = {
                TableName(each.relation.namespace, each.relation.name): each.relation
                for each in read_published(connection, state)
            }
        listed = {each.table: each for each in state.tables}
        if table not in listed or table not in relations:
            raise ConfigError(f"{table} is not published any more")
        return relations[table], listed[table]

    def run(self, record: Record) -> None:
        """Make the snapshot; returns when it is over, or we are to stop."""
        failures = 0
        while not self._stopping.is_set():
            done = record.done
            try:
                self._advance(record)
            except TailraceError as error:
                record.error = str(error)
                if self._final(record, error):
                    self.give_up(record, error)
                    return
                failures = 0 if record.done > done else failures
                delay_s = _BACK_OFF_S[min(failures, len(_BACK_OFF_S) - 1)]
                failures += 1
                self._events.warning(
                    "snapshot.retrying", id=record.id, code=error.code, reason=str(error),
                    again_in_s=delay_s,
                )  # fmt: skip
                self._stopping.wait(delay_s)
            else:
                return

    def give_up(self, record: Record, error: TailraceError) -> None:
        """Tell whoever waits for the metadata that there will be none."""
        record.error = str(error)
        self._events.error(
            "snapshot.failed", id=record.id, table=str(record.table),
            code=error.code, reason=str(error), hint=error.hint,
        )  # fmt: skip
        failed = {
            "snapshot_id": record.id,
            "table": record.table.name,
            "schema": record.table.namespace,
            "error": str(error),
            "code": error.code,
            "hint": error.hint,
        }
        self._release(record)
        try:
            self._tell(record, f"{record.id}-failed", failed)
        except TailraceError as refusal:
            self._events.warning("snapshot.untold", id=record.id, reason=str(refusal))
        record.forget(self.folder)
        record.state, record.ended_at = "failed", time.time()

    def _release(self, record: Record) -> None:
        """Let PostgreSQL clean up, and the table be altered, without waiting for the keeper."""
        if record.snapshot is not None:
            try:
                release(self._dsn, record.snapshot)
            except TailraceError as error:
                self._events.warning("snapshot.kept", id=record.id, reason=str(error))

    def _final(self, record: Record, error: TailraceError) -> bool:
        """Whether trying again is of no use. A snapshot that is gone is replaced by another."""
        if type(error) is TailraceError or error.retry is Retry.BACK_OFF:
            return False
        return record.snapshot is None or self._lives(record.snapshot)

    def _lives(self, snapshot: Exported) -> bool:
        try:
            with imported(self._dsn, snapshot):
                return True
        except TailraceError:
            return False

    def _advance(self, record: Record) -> None:
        """From wherever it is to its end."""
        edition, stored = self._continued(record), frozenset[str]()
        if edition is not None:
            stored = self._stored(edition)
        elif self._joining.wait(record.table, self._stopping):
            edition = self._begun(record)
        else:
            return
        record.state, record.error = "running", ""
        record.begun_at = record.begun_at or time.time()
        while record.done < len(record.stretches):
            if self._stopping.is_set():
                return
            wave = record.stretches[record.done : record.done + self._settings.parallel]
            found = self._publish(edition, wave, number=record.number, stored=stored)
            record.done += len(wave)
            record.number = found.beyond
            record.chunks += found.chunks
            record.rows += found.rows
            record.bytes += found.bytes
            record.save(self.folder)
        self._announce(record, edition.snapshot)
        record.state, record.ended_at = "complete", time.time()
        record.forget(self.folder)
        self._release(record)
        self._events.info(
            "snapshot.complete", id=record.id, table=str(record.table), rows=record.rows,
            chunks=record.chunks, seconds=round(time.time() - record.requested_at, 1),
        )  # fmt: skip

    def _continued(self, record: Record) -> Edition | None:
        """The edition of a record whose exported snapshot still lives."""
        if record.snapshot is None:
            return None
        try:
            with imported(self._dsn, record.snapshot):
                pass
        except RefusedError:
            self._events.warning("snapshot.gone", id=record.id, table=str(record.table))
            record.forget(self.folder)
            record.supersedes, record.id = record.id, new_id()
            record.snapshot, record.stretches, record.dictionary = None, [], ""
            record.done = record.number = record.chunks = record.rows = record.bytes = 0
            return None
        return self._edition(record)

    def _begun(self, record: Record) -> Edition:
        record.snapshot = keep(self._dsn, record.table, idle_s=_HOLD_S)
        edition = self._edition(record)
        with imported(self._dsn, record.snapshot) as connection:
            record.stretches = stretches(
                connection, edition.table, most_bytes=self._settings.stretch_bytes
            )
            if self._settings.compression == "zstd" and record.form == "rows":
                packing = dictionary.train(connection, edition, record.stretches)
                edition = replace(edition, compression=packing)
                record.dictionary = base64.b64encode(packing.dictionary).decode()
                dictionary.store(edition)
        # Consumers follow the changes from before the snapshot on: the stream has to be there.
        Parcels(self._pipeline.sink, name=self._name, owner=self._name).close()
        record.save(self.folder)
        self._events.info("snapshot.begun", id=record.id, table=str(record.table))
        return edition

    def _edition(self, record: Record) -> Edition:
        assert record.snapshot is not None
        relation, listed = self._published(record.table)
        with imported(self._dsn, record.snapshot) as connection:
            table = described(connection, relation)
        return Edition(
            id=record.id,
            dsn=self._dsn,
            snapshot=record.snapshot,
            table=table,
            conditions=(f"({listed.row_filter})",) if listed.row_filter else (),
            path=table_path(relation.namespace, relation.name),
            encoding=self._pipeline.format,
            chunk_rows=self._settings.chunk_rows,
            sink=self._sink,
            compression=self._packing(record),
            form=record.form,
        )

    def _packing(self, record: Record) -> Compression | None:
        if self._settings.compression == "none":
            return None
        return Compression(base64.b64decode(record.dictionary))

    def _stored(self, edition: Edition) -> frozenset[str]:
        with Parcels(self._sink, name=edition.id) as parcels:
            return frozenset(parcels.stored(f"{edition.subject}>"))

    def _announce(self, record: Record, snapshot: Exported) -> None:
        """Say that all chunks are there, and what the snapshot sees."""
        meta: dict[str, Any] = {
            "snapshot_id": record.id,
            "lsn": str(snapshot.lsn),
            "timestamp": int(snapshot.taken_at.timestamp()),
            "batch_count": record.chunks,
            "row_count": record.rows,
            "table": record.table.name,
            "schema": record.table.namespace,
            "visibility": str(snapshot.visibility),
            "since": snapshot.since.isoformat() if snapshot.since else None,
            "format": record.form,
            "supersedes": record.supersedes or None,
        }
        self._tell(record, f"{record.id}-meta", meta)

    def _tell(self, record: Record, name: str, fields: dict[str, Any]) -> None:
        path = table_path(record.table.namespace, record.table.name)
        subject = f"{meta_prefix(record.form)}.{path}"
        parcel = Parcel(destination=subject, id=name, payload=self.encoded(fields))
        with Parcels(self._sink, name=record.id) as parcels:
            parcels.send(parcel)
            parcels.flush()

    def encoded(self, fields: dict[str, Any]) -> bytes:
        """A small message."""
        return orjson.dumps(fields) if self._pipeline.format == "json" else ormsgpack.packb(fields)

    @property
    def _dsn(self) -> str:
        return self._config.source.dsn.get_secret_value()


def new_id() -> str:
    """An id that no earlier snapshot has."""
    return f"snap-{time.time_ns() // 1_000_000}"
