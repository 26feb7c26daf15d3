"""Delivery: blocks of messages go in, receipts come out, messages are durable in between.

It runs as an Arrow function inside the task that holds the rows. Nothing counts before the last
`flush`: when anything fails the task fails, the batch is not committed, and the same messages with
the same ids come again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator  # noqa: TC003 - Spark reads the annotations
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import LongType, StructField, StructType

from tailrace.message import MESSAGES
from tailrace.pipeline import opening
from tailrace.pipeline.frame import arrow_schema
from tailrace.position import Position

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyspark.sql import DataFrame

    from tailrace.config import NatsSink
    from tailrace.sinks.contract import Receipt

_FIELDS = ("messages", "bytes", "duplicates", "p50_us", "p99_us")
RECEIPT = StructType([StructField(name, LongType()) for name in _FIELDS])
"""What a task came to, in its last row: counts, and how long before it was durable a change had
been committed (median and 99th percentile). Null in all other rows."""
_ROW = pa.struct(list(arrow_schema(RECEIPT)))


def deliver(blocks: DataFrame, *, name: str, run: str, sink: NatsSink) -> DataFrame:
    """The receipts of delivering `blocks` in their order."""

    @arrow_udf(RECEIPT)  # type: ignore[call-overload,untyped-decorator]
    def delivered(batches: Iterator[tuple[pa.Array, pa.Array]]) -> Iterator[pa.Array]:
        yield from _deliver(batches, name=name, run=run, sink=sink)

    receipt = delivered.asNondeterministic()(blocks["after"], blocks["messages"])
    return blocks.select(receipt.alias("receipt")).select("receipt.*")


def _deliver(
    batches: Iterator[tuple[pa.Array, pa.Array]], *, name: str, run: str, sink: NatsSink
) -> Iterator[pa.Array]:
    """One answer a row; the last one waits for the flush."""
    waiting = 0
    commits: list[NDArray[np.int64]] = []
    try:
        for afters, blocks in batches:
            if waiting:
                yield pa.nulls(waiting, _ROW)
            waiting = len(blocks)
            for after, block in zip(afters, blocks, strict=True):
                if not commits:
                    start = Position.parse(after.as_py())
                    opened = opening.get(sink, name=name, run=run, after=start)
                messages = pa.ipc.read_record_batch(block.as_buffer(), MESSAGES)
                commits.append(messages["committed_at"].to_numpy())
                opened.write(messages)
        if waiting:
            yield _last(waiting, opened.flush(), np.concatenate(commits))
    except BaseException:
        opening.discard(name)
        raise


def _last(rows: int, receipt: Receipt, commits: NDArray[np.int64]) -> pa.Array:
    delays = np.percentile(time.time_ns() // 1000 - commits, (50, 99))
    values = [receipt.messages, receipt.bytes, receipt.duplicates, *map(int, delays)]
    last = pa.array([dict(zip(_FIELDS, values, strict=True))], _ROW)
    return pa.concat_arrays([pa.nulls(rows - 1, _ROW), last])
