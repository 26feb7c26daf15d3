"""Snapshots of one pipeline's tables: requests in one thread, the work in another."""

from __future__ import annotations

import queue
import secrets
import threading
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import structlog

from tailrace.encode.creek import schema as creek
from tailrace.errors import ConfigError, UnexpectedError
from tailrace.jetstream.requests import Listener
from tailrace.snapshot.service.answers import CreekAnswers, Plain
from tailrace.snapshot.service.catalog import PublishedTables
from tailrace.snapshot.service.maker import Maker, new_id
from tailrace.snapshot.service.record import Record

if TYPE_CHECKING:
    from tailrace.config import Config
    from tailrace.observe.figures import SnapshotFigures
    from tailrace.postgres.publication import TableName
    from tailrace.snapshot.job import FormatName
    from tailrace.snapshot.service.catalog import Listing
    from tailrace.snapshot.service.maker import Publish

_REMEMBERED = 20
_POLL_S = 0.2
_SHARED = frozenset({"queued", "running"})
_OVER = frozenset({"complete", "failed"})


class Service:
    """Takes requests and works them off, one after another."""

    def __init__(self, config: Config, name: str, publish: Publish) -> None:
        pipeline = config.pipelines[name]
        self._pipeline = pipeline
        self._stopping = threading.Event()
        catalog = PublishedTables(config, name)
        self._maker = Maker(config, name, catalog, publish, self._stopping)
        form = CreekAnswers if pipeline.shape == "creek" else Plain
        self._answers = form(pipeline, catalog, self.take)
        self._lock = threading.RLock()
        self._known: list[Record] = []
        self._queue: queue.SimpleQueue[Record] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=target, name=f"snapshots {name}", daemon=True)
            for target in (self._work, self._listen)
        ]

    def start(self) -> None:
        """Go on with what a crash has left, and listen."""
        for record in Record.load(self._maker.folder):
            if (record.form == "creek") != (self._pipeline.shape == "creek"):
                structlog.get_logger().warning("snapshot.of-another-shape", id=record.id)
                continue
            structlog.get_logger().info("snapshot.found", id=record.id, table=str(record.table))
            self._add(record)
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop listening, and stop after the wave that is on its way."""
        self._stopping.set()

    def join(self, timeout_s: float) -> None:
        """Wait for the threads."""
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(timeout_s)

    def progress(self) -> list[SnapshotFigures]:
        """The snapshots of this run, the youngest last."""
        with self._lock:
            return [record.progress() for record in self._known]

    def take(self, table: TableName, form: FormatName, listing: Listing) -> Record:
        """Write a request down; if such a snapshot is on its way, that one will do."""
        with self._lock:
            for record in self._known:
                if (record.table, record.form) == (table, form) and record.state in _SHARED:
                    return record
            record = Record(id=new_id(), table=table, form=form, requested_at=time.time())
            if form == "creek":
                record.id = _creek_id(datetime.now(UTC))
                names = listing.database, "snap", table.namespace, table.name
                subject = creek.subject(self._pipeline.namespace, *names)
                record.topic = f"{subject}.{record.id}"
            record.save(self._maker.folder)
            self._add(record)
            return record

    def _add(self, record: Record) -> None:
        """Whatever is on its way is remembered, and some of what is over."""
        with self._lock:
            over = [each for each in self._known if each.state in _OVER]
            gone = over[: max(len(over) + 1 - _REMEMBERED, 0)]
            self._known = [each for each in self._known if each not in gone] + [record]
        self._queue.put(record)

    def _listen(self) -> None:
        self._answers.open()
        try:
            Listener(self._pipeline.nats, self._answers, self._stopping).run()
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
                # A fault of our own ends this snapshot, not the ones that come after it.
                structlog.get_logger().exception("snapshot.broken", id=record.id)
                self._maker.give_up(record, UnexpectedError.wrap(error))


def _creek_id(now: datetime) -> str:
    """When it was asked for, and four digits, in case somebody else asked at the same moment.

    >>> _creek_id(datetime(2026, 1, 2, 3, 4, 5, 6, UTC))[:-4]
    '20260102030405_000006_'
    """
    return f"{now:%Y%m%d%H%M%S_%f}_{secrets.token_hex(2)}"


def services(config: Config, publish: Publish) -> list[Service]:
    """One for each pipeline that serves requests, each under a subject of its own."""
    subjects: dict[tuple[str, str], str] = {}
    for name, pipeline in config.pipelines.items():
        if pipeline.snapshots is not None:
            subject = pipeline.nats.url, pipeline.snapshots.request
            other = subjects.setdefault(subject, name)
            if other != name:
                raise ConfigError(
                    f"pipelines {other} and {name} both answer to {subject[1]}",
                    hint="Give one of them another `snapshots.request`, and a stream of its own.",
                )
    return [Service(config, name, publish) for name in subjects.values()]
