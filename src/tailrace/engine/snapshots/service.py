"""Snapshots of one pipeline's tables: requests in one thread, the work in another."""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING

import orjson
import structlog

from tailrace.engine.snapshots.maker import Maker, new_id
from tailrace.engine.snapshots.record import Record
from tailrace.engine.snapshots.requests import Requests
from tailrace.errors import ConfigError, TailraceError

if TYPE_CHECKING:
    from tailrace.config import Config
    from tailrace.engine.snapshots.maker import Publish
    from tailrace.snapshot.edition import Form

_REMEMBERED = 20
_POLL_S = 0.2


class Service:
    """Takes requests and works them off, one after another."""

    def __init__(self, config: Config, name: str, publish: Publish) -> None:
        pipeline = config.pipelines[name]
        assert pipeline.snapshots is not None
        self._stopping = threading.Event()
        self._maker = Maker(config, name, publish, self._stopping)
        self._requests = Requests(
            pipeline.sink, pipeline.snapshots.request, self.answer, self._stopping
        )
        self._lock = threading.RLock()
        self._known: list[Record] = []
        self._queue: queue.SimpleQueue[Record] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=target, name=f"snapshots {name}", daemon=True)
            for target in (self._work, self._requests.run)
        ]

    def start(self) -> None:
        """Go on with what a crash has left, and listen."""
        for record in Record.load(self._maker.folder):
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

    def progress(self) -> list[dict[str, object]]:
        """The snapshots of this run, the youngest last."""
        with self._lock:
            return [record.progress() for record in self._known]

    def answer(self, path: str, said: bytes = b"") -> bytes:
        """What to tell whoever asks for a table by its name in subjects.

        A message that is no request of ours asks for rows: anything will do for that.
        """
        try:
            record = self._requested(path, _form(said))
        except TailraceError as error:
            structlog.get_logger().warning("snapshot.refused", asked=path, reason=str(error))
            return self._maker.encoded(
                {"error": str(error), "code": error.code, "hint": error.hint}
            )
        return self._maker.encoded(
            {
                "snapshot_id": record.id,
                "table": record.table.name,
                "schema": record.table.namespace,
                "format": record.form,
                "state": record.state,
            }
        )

    def _requested(self, path: str, form: Form) -> Record:
        tables = self._maker.tables()
        if path not in tables:
            raise ConfigError(
                f"there is no table {path} to take a snapshot of",
                hint=f"There are {', '.join(sorted(tables)) or 'none'}.",
            )
        table = tables[path]
        with self._lock:
            for record in self._known:
                alike = (record.table, record.form) == (table, form)
                if alike and record.state in {"queued", "running"}:
                    return record
            record = Record(id=new_id(), table=table, form=form, requested_at=time.time())
            record.save(self._maker.folder)
            self._add(record)
            return record

    def _add(self, record: Record) -> None:
        with self._lock:
            self._known = [*self._known[1 - _REMEMBERED :], record]
        self._queue.put(record)

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
                self._maker.give_up(record, TailraceError(f"{type(error).__name__}: {error}"))


def _form(said: bytes) -> Form:
    try:
        asked = orjson.loads(said)
    except orjson.JSONDecodeError:
        return "rows"
    return "copy" if isinstance(asked, dict) and asked.get("format") == "copy" else "rows"


def services(config: Config, publish: Publish) -> list[Service]:
    """One for each pipeline that serves requests, each under a subject of its own."""
    subjects: dict[tuple[str, str], str] = {}
    for name, pipeline in config.pipelines.items():
        if pipeline.snapshots is not None:
            subject = pipeline.sink.url, pipeline.snapshots.request
            other = subjects.setdefault(subject, name)
            if other != name:
                raise ConfigError(
                    f"pipelines {other} and {name} both answer to {subject[1]}",
                    hint="Give one of them another `snapshots.request`, and a stream of its own.",
                )
    return [Service(config, name, publish) for name in subjects.values()]
