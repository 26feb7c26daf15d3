"""`format("tailrace")`: PostgreSQL's changes as a Spark source.

Spark runs the planning methods of a reader in one process that lives as long as the query, and
`read` in workers that come and go: planning may keep state, reading must not need any. What else is
peculiar about this interface, and is answered here:

* A reader is built twice, and pickled once: nothing is opened before the first planning call.
* `commit` comes one batch late and never for the last. The `start` of `latestOffset` is always
  fully processed, so that is what the log is told to let go of.
* `stop` is never called; the process gets SIGTERM. A handler stops an inner capture in order.
* Workers idle for a minute are killed, and a new one takes seconds to start: a heartbeat batch with
  one empty task keeps them warm. It is the only difference between two offsets of one position.
* Rows of a backfill stand behind the last change of a micro-batch, at positions of their own; an
  offset also has the number of the last chunk, which goes on counting when the log moves on.
* Any exception in a planning method ends the query: only what is final is raised.
"""

from __future__ import annotations

import signal
import sys
import time
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from tailrace.backfill.handover import page_position
from tailrace.backfill.spool import Spool
from tailrace.errors import ConfigError, ReplanError
from tailrace.log import retention
from tailrace.log.reader import Log
from tailrace.log.store import LocalStore
from tailrace.pipeline.expressions.compile import fingerprint
from tailrace.pipeline.frames import build as frames
from tailrace.pipeline.frames.frame import wanted_by
from tailrace.pipeline.source.options import Options
from tailrace.pipeline.spec import Spec
from tailrace.position import Position

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType

    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

    from tailrace.backfill.spool import Page
    from tailrace.pipeline.source.inline import InlineCapture
    from tailrace.snapshot.table import Table

_WAIT_S = 0.05
_BEAT_S = 30.0
_PIN_S = 1.0
_UNLIMITED = 1 << 62


class TailraceSource(DataSource):
    """The changes of a PostgreSQL database, from a log or straight from the server."""

    @classmethod
    def name(cls) -> str:
        """What `format(...)` calls it."""
        return "tailrace"

    @cached_property
    def _options(self) -> Options:
        return Options.of(self.options)

    def schema(self) -> StructType:
        """The columns of the frame that is asked for."""
        return frames.schema_of(self._options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """With a DSN, a table as of now; with a log, the changes in it."""
        options = self._options
        if not options.dsn:
            return LogReader(self._with_facts(), schema)
        if not options.table:
            raise ConfigError('a batch read with a DSN needs .option("table", "schema.table")')
        from tailrace.pipeline.source.snapshot import SnapshotReader  # noqa: PLC0415 - psycopg

        return SnapshotReader(options, schema)

    def _with_facts(self) -> Options:
        """Changes make no sense without them."""
        if not self._options.facts:
            raise ConfigError(
                'facts "false" is for the rows that a table has, not for changes of them',
                hint='Leave the option out, or read the table with spark.read and "dsn".',
            )
        return self._options

    def streamReader(self, schema: StructType) -> TailraceReader:  # noqa: N802
        """A reader of the log."""
        return TailraceReader(self._with_facts(), schema)


class Range(InputPartition):
    """A stretch of the log for one task, and the chunks of backfills behind it."""

    def __init__(self, after: str, upto: str, chunks: tuple[int, ...] = ()) -> None:
        super().__init__((after, upto, chunks))
        self.after, self.upto, self.chunks = after, upto, chunks


class LogReader(DataSourceReader):
    """Everything that is in the log by now."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._stream = TailraceReader(options, schema)

    def partitions(self) -> Sequence[InputPartition]:
        """From the starting position to the end."""
        self._stream.prepareForTriggerAvailableNow()
        start, end = self._stream.initialOffset(), self._stream.reportLatestOffset()
        assert end is not None
        return self._stream.partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a range."""
        yield from self._stream.read(partition)


class TailraceReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches over the log, and reads them."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._capture: InlineCapture | None = None
        self._log: Log | None = None
        self._target: Position | None = None
        self._last_batch = time.monotonic()
        self._pinned_at = 0.0
        self._checked = False

    def initialOffset(self) -> dict[str, object]:  # noqa: N802
        """Where a query without a checkpoint begins."""
        log = self._opened()
        return _offset(self._options.after or log.resolve(self._options.start))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The option `maxRowsPerTrigger`; `maxBytesPerTrigger` holds beside it."""
        return ReadMaxRows(self._options.max_rows)

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:  # noqa: N802
        """The end of the next micro-batch: waits a moment for changes when there are none."""
        log = self._opened()
        after = _position(start)
        self._pin(after)
        if self._capture is not None:
            self._capture.check()
        upto = self._advanced(log, after, limit)
        chunks = self._chunks(log, _chunk(start), upto, alone=upto == after)
        if upto == after and not chunks:
            return self._beat(start) if self._target is None else start
        self._last_batch = time.monotonic()
        if not chunks:
            return _offset(upto, _chunk(start))
        last = chunks[-1]
        numbers = {"chunks": [chunk.number for chunk in chunks]}
        return _offset(page_position(last, upto), last.number) | numbers

    def _advanced(self, log: Log, after: Position, limit: ReadLimit) -> Position:
        """How far the next micro-batch goes in the log."""
        if self._target is None and log.wait(after, _WAIT_S).position <= after:
            return after
        rows, size = self._limits(limit)
        upto = log.extent(after, rows=rows, size=size, upto=self._target).upto
        return self._planned(log, after, upto) if upto > after else after

    def _chunks(self, log: Log, delivered: int, upto: Position, *, alone: bool) -> list[Page]:
        """The chunks of backfills that may stand behind a position: all they see is before it."""
        found: list[Page] = []
        if self._options.spool is None:
            return found
        spool = Spool(self._options.spool)
        for chunk in map(spool.page, spool.numbers(delivered)):
            mark = log.end()
            whole = mark.position <= upto and mark.end_lsn >= chunk.lsn
            if not whole and upto.lsn < chunk.lsn:
                break
            if not self._knows(chunk.table):
                if alone and not found:
                    raise ReplanError(f"{chunk.table.name} is not in the plan")
                break
            found.append(chunk)
            if sum(chunk.rows for chunk in found) >= self._options.max_rows:
                break
        return found

    def _knows(self, table: Table) -> bool:
        if self._options.frame != "cells":
            return True
        spec = Spec.load(self._options.pipeline)
        return fingerprint(table.relation, table.types) in spec.relations

    def _planned(self, log: Log, after: Position, upto: Position) -> Position:
        """As far as the plan knows every version of every table; raises when it knows nothing."""
        if self._options.frame != "cells":
            return upto
        spec = Spec.load(self._options.pipeline)
        wanted = wanted_by(spec.wanted())
        for before, relation, types in log.relations(after, upto, in_force=not self._checked):
            if wanted(relation) and fingerprint(relation, types) not in spec.relations:
                if before <= after:
                    raise ReplanError(f"{relation.qualified_name} has changed")
                return before
        self._checked = True
        return upto

    def reportLatestOffset(self) -> dict[str, object] | None:  # noqa: N802
        """The end of the log, for Spark's progress reports."""
        return None if self._log is None else _offset(self._log.end().position)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Everything that is committed in PostgreSQL now, and no more."""
        log = self._opened()
        if self._capture is not None:
            self._capture.catch_up(log)
        self._target = log.end().position

    def partitions(
        self, start: dict[str, object], end: dict[str, object]
    ) -> Sequence[InputPartition]:
        """The range in one piece, or in as many as the option `partitions` says."""
        log = self._opened()
        after, upto = _position(start), _position(end)
        count = self._options.partitions
        chunks = _chunks(end) if _chunk(end) > _chunk(start) else ()
        if count == 1 or after == upto:
            return [Range(str(after), str(upto), chunks)]
        total = log.extent(after, rows=_UNLIMITED, size=_UNLIMITED, upto=upto).bytes
        ranges = []
        while after < upto:
            size = max(total // count, 1)
            cut = log.extent(after, rows=_UNLIMITED, size=size, upto=upto).upto
            cut = upto if cut <= after else cut
            ranges.append(Range(str(after), str(cut)))
            after = cut
        return ranges

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a range, the same ones every time."""
        assert isinstance(partition, Range)
        after, upto = Position.parse(partition.after), Position.parse(partition.upto)
        yield from frames.read(self._options, self._schema, after, upto, partition.chunks)

    def stop(self) -> None:
        """End an inner capture; called by our own signal handler."""
        if self._capture is not None:
            self._capture.stop()

    def _opened(self) -> Log:
        """The log; the first call starts the inner capture when there is a DSN."""
        if self._log is None:
            if self._options.dsn:
                from tailrace.pipeline.source.inline import InlineCapture  # noqa: PLC0415

                signal.signal(signal.SIGTERM, self._on_sigterm)
                self._capture = InlineCapture(self._options)
                self._capture.start()
            self._log = Log.open(self._options.log)
        return self._log

    def _on_sigterm(self, _signum: int, _frame: FrameType | None) -> None:
        self.stop()
        sys.exit(0)

    def _beat(self, start: dict[str, object]) -> dict[str, object]:
        if time.monotonic() - self._last_batch < _BEAT_S:
            return start
        self._last_batch = time.monotonic()
        beat = start.get("beat", 0)
        assert isinstance(beat, int)
        return start | {"beat": beat + 1}

    def _limits(self, limit: ReadLimit) -> tuple[int, int]:
        if isinstance(limit, ReadAllAvailable):
            return _UNLIMITED, _UNLIMITED
        if isinstance(limit, ReadMaxBytes):
            return self._options.max_rows, limit.max_bytes
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.max_rows
        return rows, self._options.max_bytes

    def _pin(self, after: Position) -> None:
        """Everything after a batch's start may still be asked for again."""
        now = time.monotonic()
        if self._options.consumer and now - self._pinned_at > _PIN_S:
            self._pinned_at = now
            retention.pin(LocalStore(self._options.log), self._options.consumer, after)


def _offset(position: Position, chunk: int = 0) -> dict[str, object]:
    return {"position": str(position)} | ({"chunk": chunk} if chunk else {})


def _position(offset: dict[str, object]) -> Position:
    return Position.parse(str(offset["position"]))


def _chunk(offset: dict[str, object]) -> int:
    """The last chunk of a backfill that is delivered."""
    return int(str(offset.get("chunk", 0)))


def _chunks(offset: dict[str, object]) -> tuple[int, ...]:
    """The chunks of the micro-batch that ends here."""
    numbers = offset.get("chunks", [])
    assert isinstance(numbers, list)
    return tuple(numbers)
