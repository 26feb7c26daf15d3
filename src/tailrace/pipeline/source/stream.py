"""`format("tailrace")`: PostgreSQL's changes as a Spark data source.

Spark runs the planning methods of a reader in one process that lives as long as the query, and
`read` in worker processes that come and go: planning may keep state, reading must not need any. The
planning itself is in `planner`; this module adapts it to Spark's interface, which has these
peculiarities:

* Spark builds a reader twice and pickles it once: nothing is opened before the first planning call.
* `commit` comes one batch late and never for the last batch. But Spark has always processed the
  `start` of `latestOffset`, so the reader moves its retention pin there.
* Spark never calls `stop`; the process receives SIGTERM. A signal handler stops inline capture.
* Spark kills workers that are idle for a minute, and a new one takes seconds to start. A heartbeat
  batch with one empty task keeps them alive.
* Rows of a backfill follow the last change of a micro-batch, at positions of their own. The offset
  also holds the number of the last page, which keeps growing when the log moves on.
* Any exception in a planning method ends the query: the reader raises final errors only.
* An offset is planned before its batch runs. The offset of an open batch (`tailrace.open_batch`)
  therefore names the batch; where it ended is looked up when the next batch is planned.
* Spark starts a new interpreter for the planning of each query, so the decoder and the encoders are
  loaded only where rows are read.
"""

from __future__ import annotations

import contextlib
import math
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

from tailrace.backfill.spool import Spool
from tailrace.errors import ConfigError, DiskFullError
from tailrace.log import retention
from tailrace.log.reader import Log
from tailrace.log.store import LocalStore
from tailrace.pipeline.source.offset import Offset
from tailrace.pipeline.source.options import Options
from tailrace.pipeline.source.partitions import OpenRange, Range, ReleasePartition
from tailrace.pipeline.source.planner import UNLIMITED, Limits, PlannedVersions, Planner, split
from tailrace.pipeline.source.resolver import OffsetResolver
from tailrace.pipeline.spec import Spec
from tailrace.position import Position

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import FrameType

    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

    from tailrace.backfill.spool import Page
    from tailrace.open_batch import OpenBatch
    from tailrace.parking.parking import Parking, Release
    from tailrace.pipeline.source.inline import InlineCapture

_WAIT_S = 0.05
_QUIET_WAIT_S = 0.25
"""After the last page of a backfill. A change ends the wait."""
_PIN_S = 1.0


class TailraceSource(DataSource):
    """The changes of a PostgreSQL database, from a log or directly from the server."""

    @classmethod
    def name(cls) -> str:
        """The name for `format(...)`."""
        return "tailrace"

    @cached_property
    def _options(self) -> Options:
        return Options.of(self.options)

    def schema(self) -> StructType:
        """The columns of the frame that the options describe."""
        from tailrace.pipeline.frames import build as frames  # noqa: PLC0415 - see above

        return frames.schema_of(self._options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch read: with a DSN the table as of now, with a log the changes in it."""
        options = self._options
        if not options.dsn:
            return LogReader(self._options_for_changes(), schema)
        if not options.table:
            raise ConfigError('a batch read with a DSN needs .option("table", "schema.table")')
        from tailrace.pipeline.source.snapshot import SnapshotReader  # noqa: PLC0415 - psycopg

        return SnapshotReader(options, schema)

    def _options_for_changes(self) -> Options:
        if not self._options.facts:
            raise ConfigError(
                'facts "false" applies to the rows of a table, not to changes',
                hint='Remove the option, or read the table with spark.read and "dsn".',
            )
        return self._options

    def streamReader(self, schema: StructType) -> TailraceReader:  # noqa: N802
        """A streaming read of the log."""
        return TailraceReader(self._options_for_changes(), schema)


class LogReader(DataSourceReader):
    """A batch read of everything that the log holds."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._stream = TailraceReader(options, schema)

    def partitions(self) -> Sequence[InputPartition]:
        """From the starting position to the end of the log."""
        self._stream.prepareForTriggerAvailableNow()
        start, end = self._stream.initialOffset(), self._stream.reportLatestOffset()
        assert end is not None
        return self._stream.partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a range."""
        yield from self._stream.read(partition)


class TailraceReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches over the log, and reads them."""

    def __init__(
        self,
        options: Options,
        schema: StructType,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._schema = schema
        self._clock = clock
        self._capture: InlineCapture | None = None
        self._log: Log | None = None
        self._target: Position | None = None
        self._pinned_at = -math.inf

    def initialOffset(self) -> dict[str, object]:  # noqa: N802
        """Where a query without a checkpoint begins."""
        log = self._open_log()
        position = self._options.after or log.resolve(self._options.start)
        return Offset(position=position).dump()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The option `maxRowsPerTrigger`; `maxBytesPerTrigger` applies as well."""
        return ReadMaxRows(self._options.max_rows)

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:  # noqa: N802
        """The end of the next micro-batch; `start` itself if there is nothing to do.

        Waits briefly for changes, so that an idle query does not spin.
        """
        log, offset = self._open_log(), self._offsets.resolve(start)
        self._pin(offset.position)
        if self._capture is not None:
            self._capture.check()
        if self._target is None and (offset.timeline or not self._opens):
            quiet = self._opens and not any(True for _ in self._pages_after(offset.page))
            log.wait(offset.position, _QUIET_WAIT_S if quiet else _WAIT_S)
        if self._opens and self._offsets.records.close_requested:
            # The query stops: a closed batch would be interrupted.
            return start
        if (interrupted := self._offsets.interrupted(offset)) is not None:
            return interrupted.dump()
        end = self._planner.next_end(
            log, offset, limits=self._limits(limit), target=self._target, now=self._clock()
        )
        # Once more: what was planned is of the log as it is after this check or before it.
        self._offsets.check_timeline(offset)
        if end is not None and end.open:
            self._offsets.records.prune(end.opened)
        return start if end is None else end.dump()

    @cached_property
    def _offsets(self) -> OffsetResolver:
        return OffsetResolver(self._options, self._open_log())

    @property
    def _opens(self) -> bool:
        """Whether batches may be open."""
        return self._options.max_open_s > 0

    @cached_property
    def _planner(self) -> Planner:
        options = self._options
        return Planner(
            now=self._clock(),
            history=self._offsets.history,
            max_page_rows=options.max_rows,
            pages=self._pages_after,
            versions=self._planned_versions(),
            release=self._plan_release,
            opens=self._opens,
            opens_far=options.open_far,
        )

    @cached_property
    def _parking(self) -> Parking | None:
        options = self._options
        if options.parked is None:
            return None
        from tailrace.parking.parking import Parking  # noqa: PLC0415 - see above

        return Parking(
            options.parked, history=self._offsets.history, together=options.parked_together
        )

    def _plan_release(self, start: Offset, may_release: bool) -> Release | None:
        if self._parking is None:
            return None
        return self._parking.plan(
            start.position, page=start.page, released=start.release, may_release=may_release
        )

    def _pages_after(self, number: int) -> Iterable[Page]:
        if self._options.spool is None:
            return ()
        spool = Spool(self._options.spool)
        return map(spool.page, spool.numbers(number))

    def _planned_versions(self) -> PlannedVersions | None:
        """Only the cells frame depends on a plan for certain versions of tables."""
        if self._options.frame != "cells":
            return None
        return PlannedVersions.of(Spec.load(self._options.pipeline))

    def reportLatestOffset(self) -> dict[str, object] | None:  # noqa: N802
        """The end of the log, for Spark's progress reports."""
        if self._log is None:
            return None
        return Offset(position=self._log.end().position, history=self._offsets.history).dump()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Limit the query to the changes that are committed in PostgreSQL now."""
        log = self._open_log()
        if self._capture is not None:
            self._capture.catch_up(log)
        self._target = log.end().position

    def partitions(
        self, start: dict[str, object], end: dict[str, object]
    ) -> Sequence[InputPartition]:
        """The range as one partition, or as many as the option `partitions` says."""
        log, planned = self._open_log(), Offset.parse(end)
        first = self._offsets.resolve(start)
        if planned.open:
            return [self._open_partition(planned.open_batch, planned.page)]
        # With `park: never` since, the release is delivered once messages may be parked again.
        if planned.release > first.release and self._options.parked is not None:
            return [ReleasePartition(str(first.position), planned.release)]
        last = self._offsets.resolve(end)
        # A heartbeat repeats the pages of the offset that it follows: they are delivered already.
        pages = last.pages if last.page > first.page else ()
        if self._options.partitions == 1 or first.position == last.position:
            return [Range(str(first.position), str(last.position), pages)]
        ranges = split(log, first.position, last.position, self._options.partitions)
        return [Range(str(after), str(upto)) for after, upto in ranges]

    def _open_partition(self, batch: OpenBatch, page: int) -> InputPartition:
        """An open batch; nothing if it is a replay of one that was closed.

        Settings may have changed so that batches are not open any more. One that was interrupted
        then ends with what it has delivered.
        """
        closed = self._offsets.records.closed(batch)
        if closed is None and self._opens:
            return OpenRange(batch, page)
        if closed is None:
            closed = self._offsets.records.close(batch, self._offsets.records.begin(batch))
        return Range(str(closed), str(closed))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a range, the same ones on every call."""
        from tailrace.pipeline.frames import build as frames  # noqa: PLC0415 - see above

        if isinstance(partition, ReleasePartition):
            yield frames.released(self._options, partition.after, partition.number)
            return
        if isinstance(partition, OpenRange):
            yield from frames.follow(self._options, partition.batch, partition.page)
            return
        assert isinstance(partition, Range)
        after, upto = Position.parse(partition.after), Position.parse(partition.upto)
        yield from frames.read(self._options, self._schema, after, upto, partition.pages)

    def stop(self) -> None:
        """Stop inline capture; called by the signal handler."""
        if self._capture is not None:
            self._capture.stop()

    def _open_log(self) -> Log:
        """The log; the first call starts inline capture if there is a DSN."""
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

    def _limits(self, limit: ReadLimit) -> Limits:
        options = self._options
        match limit:
            case ReadAllAvailable():
                return Limits(rows=UNLIMITED, size_bytes=UNLIMITED)
            case ReadMaxBytes():
                return Limits(rows=options.max_rows, size_bytes=limit.max_bytes)
            case ReadMaxRows():
                return Limits(rows=limit.max_rows, size_bytes=options.max_bytes)
            case _:
                return Limits(rows=options.max_rows, size_bytes=options.max_bytes)

    def _pin(self, after: Position) -> None:
        """Keep everything after a batch's start in the log: Spark may replay the batch."""
        now = self._clock()
        if self._options.consumer and now - self._pinned_at > _PIN_S:
            self._pinned_at = now
            store = LocalStore(self._options.log)
            # If not even the old pin can be overwritten it stays, which keeps more than is needed.
            # The query goes on: what it delivers makes room.
            with contextlib.suppress(DiskFullError):
                retention.pin(store, self._options.consumer, after, now=time.time())
