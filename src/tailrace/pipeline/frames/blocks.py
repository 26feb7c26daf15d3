"""The block frame: encoded messages, thousands to a row.

A pipeline without SQL stages decodes and encodes in one pass, inside the source's task. Its rows
are blocks, Arrow batches of messages in one binary cell, so that crossing the JVM costs a copy of
bytes and nothing a message. Each block belongs to one lane and is in order of position.
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

from tailrace.encode.encoder import Encoder, Origin
from tailrace.encode.records import Records
from tailrace.message import MESSAGES
from tailrace.pipeline.frames.frame import arrow_schema, in_order, wanted_by
from tailrace.pipeline.lanes import Lanes
from tailrace.pipeline.spec import Spec
from tailrace.sinks.kafka.destination import TopicTemplate
from tailrace.sinks.nats.destination import SubjectTemplate
from tailrace.tables import Prefixes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from tailrace.decode.group import Group
    from tailrace.pipeline.frames.frame import Slice
    from tailrace.pipeline.source.options import Options
    from tailrace.position import Position
    from tailrace.sinks.destination import Template

SCHEMA = StructType(
    [
        StructField("after", StringType()),
        StructField("lane", IntegerType()),
        StructField("lsn", LongType()),
        StructField("ordinal", LongType()),
        StructField("messages", BinaryType()),
    ]
)
"""`after` is where the micro-batch begins; `lsn` and `ordinal` are the first message's position."""
_PACKING = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)


class BlockFrame:
    """Encoded messages, a block a row."""

    schema = SCHEMA

    def __init__(self, spec: Spec) -> None:
        self._spec = spec

    @classmethod
    def of(cls, options: Options) -> BlockFrame:
        """For the pipeline in these options."""
        return cls(Spec.load(options.pipeline))

    def batches(self, part: Slice) -> Iterator[pa.RecordBatch]:
        """The blocks of a slice; a beat, the empty one, has one without messages."""
        spec, after = self._spec, part.after
        encoder = Records() if spec.shape == "record" else encoder_of(spec)
        schema = arrow_schema(SCHEMA)
        if after == part.upto:
            # A row, so that the worker that delivers stays warm as well.
            yield _block(schema, after, 0, pa.RecordBatch.from_pylist([], schema=MESSAGES))
            return
        if spec.lanes == 1:
            for entry in self._groups(part):
                messages = in_order([encoder.encode(group) for group in entry])
                yield _block(schema, after, 0, messages)
            return
        lanes = Lanes(spec.lanes, spec.lane_key)
        for entry in self._groups(part):
            lanes.join(entry)
        for entry in self._groups(part):
            merged = in_order(
                [_with_lane(encoder.encode(group), lanes.of(group)) for group in entry]
            )
            for lane, messages in _split(merged):
                yield _block(schema, after, lane, messages)

    def _groups(self, part: Slice) -> Iterator[list[Group]]:
        spec = self._spec
        return part.groups(wanted=wanted_by(spec.wanted()), messages=Prefixes(spec.messages))


def encoder_of(spec: Spec) -> Encoder:
    """The encoder a pipeline asks for."""
    origin = Origin(
        database=spec.database, system_identifier=spec.system_identifier, slot=spec.slot
    )
    return Encoder(
        shape=spec.shape, encoding=spec.encoding, destinations=destinations_of(spec), origin=origin
    )


def destinations_of(spec: Spec) -> Template:
    """What fills the template of destinations: names are escaped as the sink needs it."""
    if spec.sink == "kafka":
        return TopicTemplate(spec.subject, database=spec.database)
    return SubjectTemplate(spec.subject, database=spec.database)


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

    The JVM copies it several times on its way to the worker that delivers; messages resemble each
    other, so compressing takes less time than those copies.
    """
    packed = pa.BufferOutputStream()
    with pa.ipc.new_stream(packed, messages.schema, options=_PACKING) as stream:
        stream.write_batch(messages)
    return packed.getvalue()


def unpack(cell: pa.BinaryScalar) -> pa.RecordBatch:
    """What was packed."""
    with pa.ipc.open_stream(cell.as_buffer()) as stream:
        return stream.read_next_batch()


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
        ],
        schema=schema,
    )
