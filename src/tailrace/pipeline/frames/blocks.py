"""The block frame: encoded messages, thousands to a row.

A pipeline without SQL stages decodes and encodes in one pass, inside the task of the source. Its
rows are blocks: Arrow batches of messages in one binary cell. Crossing the JVM then costs a copy of
bytes and nothing per message. A block belongs to one lane and is in order of position.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from tailrace.encode.facts import Origin
from tailrace.encode.shapes.registry import SHAPES
from tailrace.message import MESSAGES
from tailrace.pipeline.frames import frame
from tailrace.pipeline.frames.frame import arrow_schema, check_sizes, in_order, wanted_by
from tailrace.pipeline.frames.large import LargePayloads, put_back
from tailrace.pipeline.lanes import Lanes
from tailrace.pipeline.spec import Spec
from tailrace.sinks.registry import SINKS
from tailrace.tables import Prefixes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from tailrace.decode.group import Group
    from tailrace.encode.shapes.shape_type import GroupEncoder
    from tailrace.open_batch import OpenBatch
    from tailrace.pipeline.frames.frame import Slice
    from tailrace.pipeline.source.options import Options
    from tailrace.position import Position

SCHEMA = StructType(
    [
        StructField("after", StringType()),
        StructField("lane", IntegerType()),
        StructField("lsn", LongType()),
        StructField("ordinal", LongType()),
        StructField("messages", BinaryType()),
        StructField("open", LongType()),
        StructField("page", LongType()),
        StructField("release", LongType()),
    ]
)
"""`after` is where the micro-batch starts; `lsn` and `ordinal` are of the first message. An open
batch is one row without messages: `open` is its number, and `page` the last delivered page of a
backfill. The task that delivers then reads the log by itself, or the parked messages of a
`release`."""
_PACKING = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)


class BlockFrame:
    """Encoded messages, one block per row."""

    schema = SCHEMA

    def __init__(self, spec: Spec, large: LargePayloads | None = None) -> None:
        """`large` takes what is too large for the JVM, if the pipeline parks."""
        self._spec = spec
        self._large = large

    @classmethod
    def of(cls, options: Options) -> BlockFrame:
        """For the pipeline in these options."""
        large = None if options.parked is None else LargePayloads(options.parked / "large")
        return cls(Spec.load(options.pipeline), large)

    def batches(self, part: Slice) -> Iterator[pa.RecordBatch]:
        """The blocks of a slice. An empty slice, the heartbeat, has one block without messages."""
        spec, after = self._spec, part.after
        encoder = encoder_of(spec)
        schema = arrow_schema(SCHEMA)
        if self._large is not None:
            self._large.remove_up_to(after)
        if after == part.upto:
            # One row, so that the worker that delivers stays warm too.
            yield _block(schema, after, 0, pa.RecordBatch.from_pylist([], schema=MESSAGES))
            return
        if spec.lanes == 1:
            for entry in self._groups(part):
                messages = in_order([encoder.encode(group) for group in entry])
                yield _block(schema, after, 0, self._small(messages))
            return
        lanes = Lanes(spec.lanes, spec.lane_key, grouped=spec.grouped)
        for entry in self._groups(part):
            lanes.join(entry)
        for entry in self._groups(part):
            merged = in_order(
                [_with_lane(encoder.encode(group), lanes.of(group)) for group in entry]
            )
            for lane, messages in _split(merged):
                yield _block(schema, after, lane, self._small(messages))

    def _groups(self, part: Slice) -> Iterator[list[Group]]:
        spec = self._spec
        groups = part.groups(wanted=wanted_by(spec.wanted()), messages=Prefixes(spec.messages))
        limit = frame.MAX_ROW_BYTES if self._large is None else frame.MAX_PARKED_BYTES
        return (check_sizes(each, limit=limit) for each in groups)

    def _small(self, messages: pa.RecordBatch) -> pa.RecordBatch:
        return messages if self._large is None else self._large.take_out(messages)


def open_block(batch: OpenBatch, page: int) -> pa.RecordBatch:
    """The row of an open batch."""
    row = {"after": str(batch.after), "lane": 0, "open": batch.number, "page": page}
    return pa.RecordBatch.from_pylist([row], schema=arrow_schema(SCHEMA))


def released_block(after: str, number: int) -> pa.RecordBatch:
    """The row of a release of parked messages."""
    row = {"after": after, "lane": 0, "release": number}
    return pa.RecordBatch.from_pylist([row], schema=arrow_schema(SCHEMA))


def encoder_of(spec: Spec) -> GroupEncoder:
    """The encoder of a pipeline: its shape, with destinations as its sink writes them."""
    destinations = SINKS.find(spec.sink).destination(spec.destination, database=spec.database)
    origin = Origin(
        database=spec.database, system_identifier=spec.system_identifier, slot=spec.slot
    )
    shape = SHAPES.find(spec.shape)
    return shape.encoder(spec.encoding, destinations=destinations, origin=origin)


def _with_lane(messages: pa.RecordBatch, lanes: NDArray[np.int32]) -> pa.RecordBatch:
    return messages.append_column("lane", pa.array(lanes))


def _split(messages: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The messages of each lane, in their order."""
    lanes = messages["lane"].to_numpy()
    plain = messages.drop_columns(["lane"]).cast(MESSAGES)
    for lane in np.unique(lanes).tolist():
        yield lane, plain.take(pa.array(np.flatnonzero(lanes == lane)))


def pack(messages: pa.RecordBatch) -> pa.Buffer:
    """Messages as one cell.

    The JVM copies a cell about five times on its way to the worker that delivers. Messages resemble
    each other, so compressing them takes less time than those copies.
    """
    packed = pa.BufferOutputStream()
    with pa.ipc.new_stream(packed, messages.schema, options=_PACKING) as stream:
        stream.write_batch(messages)
    return packed.getvalue()


def unpack(cell: pa.BinaryScalar) -> pa.RecordBatch:
    """The messages of a cell."""
    with pa.ipc.open_stream(cell.as_buffer()) as stream:
        return put_back(stream.read_next_batch())


def _block(
    schema: pa.Schema, after: Position, lane: int, messages: pa.RecordBatch
) -> pa.RecordBatch:
    body = pack(messages)
    lsn, ordinal = (messages[name][:1].to_pylist() or [0] for name in ("lsn", "ordinal"))
    return pa.RecordBatch.from_arrays(
        [
            pa.array([str(after)]),
            pa.array([lane], pa.int32()),
            pa.array(lsn, pa.int64()),
            pa.array(ordinal, pa.int64()),
            pa.Array.from_buffers(
                pa.binary(),
                1,
                [None, pa.py_buffer(np.array([0, len(body)], np.int32)), body],
            ),
            pa.nulls(1, pa.int64()),
            pa.nulls(1, pa.int64()),
            pa.nulls(1, pa.int64()),
        ],
        schema=schema,
    )
