"""Delivery: messages go in, receipts come out after everything is durable.

It runs as an Arrow function inside the task that has the rows: blocks of messages that the source
encoded, or rows of SQL stages, which are encoded here. Nothing counts before the last `flush`: when
anything fails, the task fails, the batch is not committed, and the same messages are delivered
again with the same ids.
"""

from __future__ import annotations

import time
from collections.abc import Iterator  # noqa: TC003 - Spark reads the annotations
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import functions as sql
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import LongType, StructField, StructType

from tailrace.pipeline import opening
from tailrace.pipeline.frames.blocks import encoder_of, unpack
from tailrace.pipeline.frames.cells import groups_of
from tailrace.pipeline.frames.frame import arrow_schema, in_order
from tailrace.pipeline.worker import freeze_gc
from tailrace.position import READS, Position

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyspark.sql import DataFrame

    from tailrace.encode.shapes.shape_type import GroupEncoder
    from tailrace.pipeline.opening import Target
    from tailrace.pipeline.spec import Spec
    from tailrace.schema import Relation, TypeName
    from tailrace.sinks.contract import Receipt

    Relations = dict[int, tuple[Relation, dict[int, TypeName]]]

_FIELDS = ("messages", "bytes", "duplicates", "p50_us", "p99_us", "committed_us")
RECEIPT = StructType([StructField(name, LongType()) for name in _FIELDS])
"""The result of a task, in its last row: counts, the time from a change's commit until the sink had
it durably (median and 99th percentile), and the latest commit time. Null in all other rows."""
_ROW = pa.struct(list(arrow_schema(RECEIPT)))


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some rows of a task as messages."""

    rows: int
    start: str
    batches: Iterator[pa.RecordBatch]


def deliver_blocks(frame: DataFrame, target: Target) -> DataFrame:
    """Deliver encoded blocks in order; the frame has their receipts."""

    @arrow_udf(RECEIPT)  # type: ignore[call-overload,untyped-decorator]
    def delivered(batches: Iterator[tuple[pa.Array, pa.Array]]) -> Iterator[pa.Array]:
        return _deliver(map(_blocks, batches), target)

    receipt = delivered.asNondeterministic()(frame["after"], frame["messages"])
    return frame.select(receipt.alias("receipt")).select("receipt.*")


def deliver_rows(frame: DataFrame, target: Target, spec: Spec, relations: Relations) -> DataFrame:
    """Encode and deliver rows in order; the frame has their receipts."""

    @arrow_udf(RECEIPT)  # type: ignore[call-overload,untyped-decorator]
    def delivered(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        encoder = encoder_of(spec)
        return _deliver((_encoded(rows, encoder, spec, relations) for rows in batches), target)

    receipt = delivered.asNondeterministic()(sql.struct(*frame.columns))
    return frame.select(receipt.alias("receipt")).select("receipt.*")


def _blocks(columns: tuple[pa.Array, pa.Array]) -> _Piece:
    starts, blocks = columns
    start = starts[0].as_py() if len(starts) else ""
    return _Piece(len(blocks), start, map(unpack, blocks))


def _encoded(
    rows: pa.StructArray, encoder: GroupEncoder, spec: Spec, relations: Relations
) -> _Piece:
    def encoded() -> Iterator[pa.RecordBatch]:
        route, key = rows.field("destination"), rows.field("message_key")
        batches = []
        for group, found in groups_of(rows, relations):
            at = pa.array(found)
            made = encoder.encode(
                group,
                destination=route.take(at).cast(pa.binary()),
                key=key.take(at).cast(pa.binary()) if spec.keyed else None,
            )
            batches.append(made)
        if batches:
            yield in_order(batches)

    return _Piece(len(rows), rows.field("start")[0].as_py() if len(rows) else "", encoded())


def _deliver(pieces: Iterator[_Piece], target: Target) -> Iterator[pa.Array]:
    """One receipt per row; the last one follows the flush."""
    waiting, opened, last = 0, None, (-1, -1)
    lane = _lane(target)
    commits: list[NDArray[np.int64]] = []
    try:
        for piece in pieces:
            if waiting:
                yield pa.nulls(waiting, _ROW)
            waiting = piece.rows
            for messages in piece.batches:
                if not messages.num_rows:
                    continue
                if opened is None:
                    opened = opening.get(target, lane, Position.parse(piece.start))
                last = _check_order(messages, last)
                changes = messages["ordinal"].to_numpy() < READS
                commits.append(messages["committed_at"].to_numpy()[changes])
                opened.write(messages)
        if waiting and opened is not None:
            yield _last(waiting, opened.flush(), np.concatenate(commits))
        elif waiting:
            yield pa.nulls(waiting, _ROW)
        freeze_gc()
    except BaseException:
        opening.discard(target, lane)
        raise


def _lane(target: Target) -> int:
    """A task is a lane: rows are partitioned by its number."""
    context = TaskContext.get()
    return context.partitionId() if context is not None and target.lanes > 1 else 0


def _check_order(messages: pa.RecordBatch, last: tuple[int, int]) -> tuple[int, int]:
    """The position of the last message. Raises if a message follows a later one."""
    first = (messages["lsn"][0].as_py(), messages["ordinal"][0].as_py())
    if first <= last:
        raise RuntimeError(f"messages are out of order: {first} follows {last}")
    return messages["lsn"][-1].as_py(), messages["ordinal"][-1].as_py()


def _last(rows: int, receipt: Receipt, commits: NDArray[np.int64]) -> pa.Array:
    ages = np.sort(time.time_ns() // 1000 - commits)
    places = [len(ages) * percent // 100 for percent in (50, 99)]
    delays = [int(ages[place]) if len(ages) else None for place in places]
    committed = int(commits.max()) if len(commits) else None
    values = [receipt.messages, receipt.bytes, receipt.duplicates, *delays, committed]
    last = pa.array([dict(zip(_FIELDS, values, strict=True))], _ROW)
    return pa.concat_arrays([pa.nulls(rows - 1, _ROW), last])
