"""The snapshot service of one pipeline: one thread for requests, one that runs the snapshots."""

from __future__ import annotations

import queue
import secrets
import threading
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import structlog

from tailrace.errors import ConfigError, UnexpectedError
from tailrace.jetstream.requests import Listener
from tailrace.snapshot.service.answers import CreekAnswers, PlainAnswers
from tailrace.snapshot.service.catalog import PublishedTables
from tailrace.snapshot.service.maker import Maker, new_id
from tailrace.snapshot.service.record import FINISHED, Record

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import SecretStr

    from tailrace.config import Config
    from tailrace.observe.copies import SnapshotFigures
    from tailrace.postgres.names import TableName
    from tailrace.snapshot.job import FormatName
    from tailrace.snapshot.service.catalog import Listing
    from tailrace.snapshot.service.maker import Publish

_MAX_FINISHED = 20
"""Finished snapshots that `progress` lists, at most."""
_POLL_S = 0.2
_SHARED = frozenset({"queued", "running"})


class SnapshotService:
    """Takes requests and runs their snapshots, one after another. `now` is Unix time."""

    def __init__(
        self,
        config: Config,
        name: str,
        publish: Publish,
        *,
        now: Callable[[], float] = time.time,
    ) -> None:
        pipeline = config.pipelines[name]
        self._pipeline = pipeline
        self._stopping = threading.Event()
        catalog = PublishedTables(config, name)
        self._now = now
        self._maker = Maker(config, name, catalog, publish, self._stopping, now=now)
        answers = CreekAnswers if pipeline.shape == "creek" else PlainAnswers
        self._answers = answers(pipeline, catalog, self.submit)
        self._lock = threading.RLock()
        self._records: list[Record] = []
        self._queue: queue.SimpleQueue[Record] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=target, name=f"snapshots {name}", daemon=True)
            for target in (self._work, self._listen)
        ]

    def start(self) -> None:
        """Resume the snapshots of the last run, and listen for requests."""
        for record in Record.load(self._maker.folder):
            if (record.form == "creek") != (self._pipeline.shape == "creek"):
                structlog.get_logger().warning("snapshot.shape_mismatch", id=record.id)
                continue
            structlog.get_logger().info("snapshot.resuming", id=record.id, table=str(record.table))
            self._add(record)
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop listening, and stop after the current wave."""
        self._stopping.set()

    def join(self, timeout_s: float) -> None:
        """Wait for the threads."""
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(timeout_s)

    def progress(self) -> list[SnapshotFigures]:
        """The progress of the snapshots of this run, the latest last."""
        now = self._now()
        with self._lock:
            return [record.progress(now) for record in self._records]

    def submit(self, table: TableName, form: FormatName, listing: Listing) -> Record:
        """Queue a snapshot, durably; one that is queued or running is shared."""
        with self._lock:
            for record in self._records:
                if (record.table, record.form) == (table, form) and record.state in _SHARED:
                    return record
            now = self._now()
            record = Record(id=new_id(now), table=table, form=form, requested_at=now)
            if form == "creek":
                record.id = _creek_id(datetime.fromtimestamp(now, UTC))
                subject = self._pipeline.creek_layout.subject(
                    "snap", listing.database, table.namespace, table.name
                )
                record.topic = f"{subject}.{record.id}"
            record.save(self._maker.folder)
            self._add(record)
            return record

    def _add(self, record: Record) -> None:
        """Queue a record, and drop the oldest finished ones from the list."""
        with self._lock:
            finished = [each for each in self._records if each.state in FINISHED]
            dropped = finished[: max(len(finished) + 1 - _MAX_FINISHED, 0)]
            self._records = [each for each in self._records if each not in dropped] + [record]
        self._queue.put(record)

    def _listen(self) -> None:
        self._answers.open()
        try:
            Listener(self._pipeline.jetstream, self._answers, self._stopping).run()
        finally:
            self._answers.close()

    def _work(self) -> None:
        while not self._stopping.is_set():
            try:
                record = self._queue.get(timeout=_POLL_S)
            except queue.Empty:
                continue
            try:
                self._maker.run(record)
            except Exception as error:
                # A bug ends this snapshot, not the ones after it.
                structlog.get_logger().exception("snapshot.unexpected_error", id=record.id)
                self._maker.give_up(record, UnexpectedError.wrap(error))


def _creek_id(now: datetime) -> str:
    """The time of the request and four random digits, unique among producers.

    >>> _creek_id(datetime(2026, 1, 2, 3, 4, 5, 6, UTC))[:-4]
    '20260102030405_000006_'
    """
    return f"{now:%Y%m%d%H%M%S_%f}_{secrets.token_hex(2)}"


def services(config: Config, publish: Publish) -> list[SnapshotService]:
    """One service per pipeline with `snapshots`. Each needs its own request subject."""
    subjects: dict[tuple[SecretStr, str], str] = {}
    for name, pipeline in config.pipelines.items():
        if pipeline.snapshots is not None:
            subject = pipeline.jetstream.url, pipeline.snapshots.request
            other = subjects.setdefault(subject, name)
            if other != name:
                raise ConfigError(
                    f"pipelines {other} and {name} have the same snapshots.request {subject[1]!r}",
                    hint="Set another snapshots.request and snapshots.stream for one of them.",
                )
    return [SnapshotService(config, name, publish) for name in subjects.values()]
