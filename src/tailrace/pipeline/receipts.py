"""What a task has delivered: the sink's receipts added up, and how old the changes were by then.

The last row of a task carries it to the driver; an open batch also notes it while it runs.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import numpy as np
import orjson
import pyarrow as pa
from pyspark.sql.types import LongType, StringType, StructField, StructType

from tailrace.open_batch import OpenProgress
from tailrace.pipeline.frames.frame import arrow_schema
from tailrace.pipeline.latencies import Clock
from tailrace.position import READS

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from tailrace.position import Position
    from tailrace.sinks.contract import Receipt

    _Taken = tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.int64]]

_TAKEN = ("lsn", "ordinal", "committed_at")
SUMS = ("messages", "bytes", "duplicates", "parked", "failed")
_NUMBERS = (*SUMS, "p50_us", "p99_us", "committed_us", "lane")
_TEXTS = ("refusals", "latencies")
RECEIPT = StructType(
    [
        *(StructField(name, LongType()) for name in _NUMBERS),
        *(StructField(name, StringType()) for name in _TEXTS),
    ]
)
"""The result of a task, in its last row: counts, the time from a change's commit until the sink had
it durably (median and 99th percentile), the latest commit time, the lane, and as JSON the sink's
refusals and the histograms of latencies. Null in all other rows."""
ROW = pa.struct(list(arrow_schema(RECEIPT)))


class Tally:
    """Adds up receipts. `log` is the folder of the log that the changes come from."""

    def __init__(self, log: Path | None = None) -> None:
        self._sum = OpenProgress()
        self._taken: list[_Taken] = []
        """Positions and commit times of what is written and not decided."""
        self._clock = Clock(log)

    @property
    def failed(self) -> int:
        """Attempts that failed so far."""
        return self._sum.failed

    def take(self, messages: pa.RecordBatch) -> None:
        """Note messages that are written to the sink. Rows of a backfill have no commit time."""
        lsn, ordinal, commits = (messages[name].to_numpy() for name in _TAKEN)
        self._taken.append((lsn, ordinal, commits))

    def add(self, receipt: Receipt) -> None:
        """Add a receipt for what was taken, up to the position that it names."""
        self._sum = replace(
            self._sum,
            messages=self._sum.messages + receipt.messages,
            bytes=self._sum.bytes + receipt.bytes,
            duplicates=self._sum.duplicates + receipt.duplicates,
            parked=self._sum.parked + receipt.parked,
            failed=self._sum.failed + receipt.failed,
            refusals=orjson.dumps([asdict(each) for each in receipt.refusals]).decode(),
        )
        commits, lsns = self._decided(receipt.upto)
        self._clock.note(commits, lsns)
        if len(commits):
            self._sum = replace(self._sum, committed_us=int(commits.max()))

    def _decided(self, upto: Position | None) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
        """Commit times and LSNs of the changes up to a position, which are forgotten; None: of
        all."""
        if not self._taken:
            return np.empty(0, np.int64), np.empty(0, np.uint64)
        lsn, ordinal, commits = (
            np.concatenate(column) for column in zip(*self._taken, strict=True)
        )
        self._taken.clear()
        decided = np.ones(len(commits), np.bool_)
        if upto is not None:
            decided = (lsn < upto.lsn) | ((lsn == upto.lsn) & (ordinal <= upto.ordinal))
            self._taken.append((lsn[~decided], ordinal[~decided], commits[~decided]))
        decided &= ordinal < READS
        return commits[decided], lsn[decided]

    def progress(self, reached: str) -> OpenProgress:
        """The sums so far, and percentiles of what was flushed since the last call."""
        self._count_latencies()
        return replace(self._sum, reached=reached)

    def row(self, lane: int) -> pa.Array:
        """The sums as the row of a lane."""
        self._count_latencies()
        return pa.array([asdict(self._sum) | {"lane": lane}], ROW)

    def _count_latencies(self) -> None:
        latencies = self._clock.count()
        if self._clock.percentiles_us is not None:
            p50, p99 = self._clock.percentiles_us
            self._sum = replace(self._sum, p50_us=p50, p99_us=p99, latencies=latencies.dump())
