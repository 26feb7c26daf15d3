"""What a task has delivered: the sink's receipts added up, and how old the changes were by then.

The last row of a task carries it to the driver; an open batch also notes it while it runs.
"""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import numpy as np
import orjson
import pyarrow as pa
from pyspark.sql.types import LongType, StringType, StructField, StructType

from tailrace.open_batch import OpenProgress
from tailrace.pipeline.frames.frame import arrow_schema
from tailrace.position import READS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tailrace.position import Position
    from tailrace.sinks.contract import Receipt

    _Taken = tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.int64]]

_TAKEN = ("lsn", "ordinal", "committed_at")
_FIELDS = ("messages", "bytes", "duplicates", "parked", "p50_us", "p99_us", "committed_us")
RECEIPT = StructType(
    [*(StructField(name, LongType()) for name in _FIELDS), StructField("refusals", StringType())]
)
"""The result of a task, in its last row: counts, the time from a change's commit until the sink had
it durably (median and 99th percentile), the latest commit time, and a JSON array of the sink's
refusals. Null in all other rows."""
ROW = pa.struct(list(arrow_schema(RECEIPT)))


class Tally:
    """Adds up receipts."""

    def __init__(self) -> None:
        self._sum = OpenProgress()
        self._taken: list[_Taken] = []
        """Positions and commit times of what is written and not decided."""
        self._ages: list[NDArray[np.int64]] = []
        """Ages of what was flushed since the percentiles were last computed."""

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
            refusals=orjson.dumps([asdict(each) for each in receipt.refusals]).decode(),
        )
        commits = self._decided(receipt.upto)
        if len(commits):
            # Commit times are of the server's clock, which may be ahead of this machine's.
            self._ages.append(np.maximum(time.time_ns() // 1000 - commits, 0))
            self._sum = replace(self._sum, committed_us=int(commits.max()))

    def _decided(self, upto: Position | None) -> NDArray[np.int64]:
        """The commit times of the changes up to a position, which are forgotten; None: of all."""
        if not self._taken:
            return np.empty(0, np.int64)
        lsn, ordinal, commits = (
            np.concatenate(column) for column in zip(*self._taken, strict=True)
        )
        self._taken.clear()
        decided = np.ones(len(commits), np.bool_)
        if upto is not None:
            decided = (lsn < upto.lsn) | ((lsn == upto.lsn) & (ordinal <= upto.ordinal))
            self._taken.append((lsn[~decided], ordinal[~decided], commits[~decided]))
        found: NDArray[np.int64] = commits[decided & (ordinal < READS)]
        return found

    def progress(self, reached: str) -> OpenProgress:
        """The sums so far, and percentiles of what was flushed since the last call."""
        self._count_percentiles()
        return replace(self._sum, reached=reached)

    def row(self) -> pa.Array:
        """The sums as a row."""
        self._count_percentiles()
        return pa.array([asdict(self._sum)], ROW)

    def _count_percentiles(self) -> None:
        if not self._ages:
            return
        ages = np.sort(np.concatenate(self._ages))
        self._ages.clear()
        p50, p99 = (int(ages[len(ages) * percent // 100]) for percent in (50, 99))
        self._sum = replace(self._sum, p50_us=p50, p99_us=p99)
