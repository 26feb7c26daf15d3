"""Traces: one span per micro-batch, linked to the transactions that it delivers.

A thread per pipeline creates and sends them. The runner only adds a batch to its queue, and never
waits: what does not fit, or what the collector does not take in time, is counted as lost. Links
come from the log, not from delivery: entries whose bytes contain annotations are decoded here.
"""

from __future__ import annotations

import contextlib
import queue
import random
import threading
import time
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from tailrace.decode.decoder import Decoder
from tailrace.errors import ConfigError, TailraceError
from tailrace.log.format.entry import Kind
from tailrace.log.reader import Log
from tailrace.pipeline.progress import delivered_of
from tailrace.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path
    from typing import Any

    from tailrace.config import Config
    from tailrace.log.format.entry import Entry
    from tailrace.open_batch import OpenProgress
    from tailrace.position import Position
    from tailrace.schema import Relation

MAX_LINKS = 128
_QUEUED, _TOGETHER = 1000, 64
_END_S = 1.0
"""How long a stop waits for a request that was ended."""
_MARK = b"annotations.set"
"""Part of the prefixes of messages that set annotations."""
_TRACEPARENT = r'"traceparent"\s*:\s*"(?P<parent>[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2})'
_INVALID = ("ff-", f"-{'0' * 32}-", f"-{'0' * 16}-")


class Exporter(Protocol):
    """Sends spans; `tailrace.pipeline.otlp` has the one for collectors."""

    def send(self, spans: list[tuple[Batch, list[str]]]) -> bool:
        """Whether the collector has them. The texts are values of `traceparent` to link to."""

    def close(self) -> None:
        """End a request that is under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A micro-batch that was delivered. Times are nanoseconds since 1970."""

    pipeline: str
    number: int
    after: Position
    upto: Position
    started_ns: int
    ended_ns: int
    attempts: int
    delivered: OpenProgress


class Traces:
    """The spans of one pipeline."""

    def __init__(
        self, exporter: Exporter, log: Path, tables: Tables, *, sample: float = 1.0
    ) -> None:
        self.lost = 0
        """Spans that no collector has."""
        self._exporter, self._log, self._tables, self._sample = exporter, log, tables, sample
        self._queue: queue.Queue[Batch | None] = queue.Queue(_QUEUED)
        self._events = structlog.get_logger()
        self._reachable = True
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
        self._thread.start()

    def add(self, batch: Batch) -> None:
        """Have a span sent. Never waits, never raises."""
        if random.random() >= self._sample:  # noqa: S311 - a sample, not a secret
            return
        try:
            self._queue.put_nowait(batch)
        except queue.Full:
            self.lost += 1

    def report(
        self,
        pipeline: str,
        report: Mapping[str, Any],
        *,
        after: Position,
        upto: Position,
        attempts: int,
    ) -> None:
        """Have a span of a finished micro-batch sent, as Spark reports it."""
        started = datetime.fromisoformat(report["timestamp"]).timestamp()
        started_ns = round(started * 1000) * 1_000_000
        took_ms = int(report["durationMs"].get("triggerExecution", 0))
        self.add(
            Batch(
                pipeline=pipeline,
                number=report["batchId"],
                after=after,
                upto=upto,
                started_ns=started_ns,
                ended_ns=started_ns + took_ms * 1_000_000,
                attempts=attempts,
                delivered=delivered_of(report),
            )
        )

    def end(self) -> None:
        """End the thread after what is queued. Does not wait."""
        self._ending.set()
        # A thread that waits has an empty queue.
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(None)

    def close(self, deadline: float) -> None:
        """Send what is queued, until a time of the monotonic clock; the rest is lost."""
        self.end()
        self._thread.join(max(deadline - time.monotonic(), 0))
        self._exporter.close()
        self._thread.join(max(deadline + _END_S - time.monotonic(), 0))

    def _run(self) -> None:
        while not self._ending.is_set() or not self._queue.empty():
            found = [self._queue.get()]
            while len(found) < _TOGETHER and not self._queue.empty():
                found.append(self._queue.get_nowait())
            batches = [each for each in found if each is not None]
            if batches and not self._sent(batches):
                self.lost += len(batches)

    def _sent(self, batches: list[Batch]) -> bool:
        try:
            sent = self._exporter.send([(each, self._links(each)) for each in batches])
        except Exception as error:
            self._events.warning("telemetry.failed", reason=f"{type(error).__name__}: {error}")
            return False
        if sent != self._reachable:
            self._reachable = sent
            if sent:
                self._events.info("telemetry.reachable")
            else:
                self._events.warning("telemetry.unreachable", lost=self.lost + len(batches))
        return sent

    def _links(self, batch: Batch) -> list[str]:
        try:
            return links(Log.open(self._log), batch.after, batch.upto, self._wanted)
        except (TailraceError, OSError):
            # Retention may have deleted the segments since.
            return []

    def _wanted(self, relation: Relation) -> bool:
        return self._tables.match(relation.namespace, relation.name)


def links(
    log: Log, after: Position, upto: Position, wanted: Callable[[Relation], bool]
) -> list[str]:
    """The distinct values of `traceparent` of the wanted changes in `(after, upto]`, in order."""
    found: dict[str, None] = {}
    if after >= upto:
        return []
    decoder = Decoder(wanted=wanted, messages=lambda _: False)
    for entry in _annotated(log.read(after, upto)):
        for group in decoder.decode(entry, after, upto):
            if group.annotations is not None:
                found |= dict.fromkeys(_parents(group.annotations))
        if len(found) >= MAX_LINKS:
            break
    return list(found)[:MAX_LINKS]


def _annotated(entries: Iterator[Entry]) -> Iterator[Entry]:
    """The entries that may have annotations, and those that state what is needed to decode them."""
    carried = False
    for entry in entries:
        continues = carried and entry.kind is Kind.FRAGMENT and not entry.begins
        marked = _MARK in entry.body
        if marked or continues or entry.schemas:
            yield entry
        carried = (marked or continues) and not entry.ends


def _parents(annotations: pa.StringArray) -> list[str]:
    """The valid values of `traceparent` in JSON texts."""
    texts = pc.extract_regex(pc.unique(annotations).drop_null(), _TRACEPARENT)
    parents: list[str] = pc.unique(texts.drop_null().field("parent")).to_pylist()
    return [
        each
        for each in parents
        if not each.startswith(_INVALID[0]) and not any(part in each for part in _INVALID[1:])
    ]


def of(config: Config, name: str) -> Traces | None:
    """The traces of a pipeline; None without `telemetry`. Raises ConfigError without the extra."""
    settings = config.telemetry
    if settings is None:
        return None
    try:
        from tailrace.pipeline.otlp import Otlp  # noqa: PLC0415 - of the extra otel
    except ImportError as error:
        raise ConfigError(
            f"telemetry needs a package that is not installed: {error.name}",
            hint='Install it: pip install "tailrace[otel]"',
        ) from error
    headers = {key: value.get_secret_value() for key, value in settings.headers.items()}
    exporter = Otlp(
        settings.endpoint, headers, timeout_s=settings.timeout_s, service=settings.service
    )
    tables = Tables(config.pipelines[name].tables)
    return Traces(exporter, config.log.path, tables, sample=settings.sample)
