"""Delivery: messages go in, receipts come out after everything is durable.

It runs as an Arrow function inside the task that has the rows: blocks of messages that the source
encoded, or rows of SQL stages, which are encoded here. The block of an open batch has no messages:
`tailrace.pipeline.opened` reads the log itself. The rows of an open batch come with marks that say
how far the batch has come. Nothing counts before the last `flush`: when anything fails, the task
fails, the batch is not committed, and the same messages are delivered again with the same ids.
"""

from __future__ import annotations

from collections.abc import Iterator  # noqa: TC003 - Spark reads the annotations
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as sql
from pyspark.sql.pandas.functions import arrow_udf

from tailrace.headers import of_texts
from tailrace.message import GROUP
from tailrace.open_batch import OpenBatch
from tailrace.pipeline.delivery import Delivery
from tailrace.pipeline.frames.blocks import encoder_of, unpack
from tailrace.pipeline.frames.cells import OpenMark, changes_of, groups_of, release_of
from tailrace.pipeline.frames.frame import in_order
from tailrace.pipeline.opened import deliver_open
from tailrace.pipeline.receipts import RECEIPT, ROW
from tailrace.position import Position

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame

    from tailrace.encode.shapes.shape_type import GroupEncoder
    from tailrace.pipeline.open_source import OpenSource
    from tailrace.pipeline.opening import Target
    from tailrace.pipeline.spec import Spec
    from tailrace.schema import Relation, TypeName

    Relations = dict[int, tuple[Relation, dict[int, TypeName]]]


_Columns = tuple[pa.Array, pa.Array, pa.Array, pa.Array, pa.Array]


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some rows of a task as messages."""

    rows: int
    start: str
    batches: Iterator[pa.RecordBatch]
    mark: OpenMark | None = None
    release: int | None = None


def deliver_blocks(frame: DataFrame, target: Target, source: OpenSource) -> DataFrame:
    """Deliver encoded blocks in order; the frame has their receipts."""

    @arrow_udf(RECEIPT)  # type: ignore[call-overload,untyped-decorator]
    def delivered(
        batches: Iterator[_Columns],
    ) -> Iterator[pa.Array]:
        first = next(batches, None)
        if first is None:
            return
        starts, numbers, pages, releases, _ = first
        if releases[0].is_valid:
            with Delivery(target) as delivery:
                delivery.release(releases[0].as_py(), Position.parse(starts[0].as_py()))
                receipt = delivery.receipt()
            yield receipt
            return
        if numbers[0].is_valid:
            batch = OpenBatch(numbers[0].as_py(), Position.parse(starts[0].as_py()))
            with Delivery(target) as delivery:
                deliver_open(delivery, batch, source, page=pages[0].as_py())
                receipt = delivery.receipt()
            yield receipt
        else:
            yield from _deliver(map(_blocks, chain([first], batches)), target)

    columns = [frame[name] for name in ("after", "open", "page", "release", "messages")]
    receipt = delivered.asNondeterministic()(*columns)
    return frame.select(receipt.alias("receipt")).select("receipt.*")


def deliver_rows(
    frame: DataFrame, target: Target, spec: Spec, relations: Relations, records: Path
) -> DataFrame:
    """Encode and deliver rows in order; the frame has their receipts.

    `records` is the folder with the records of open batches.
    """

    @arrow_udf(RECEIPT)  # type: ignore[call-overload,untyped-decorator]
    def delivered(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        encoder = encoder_of(spec)
        pieces = (_encoded(rows, encoder, spec, relations) for rows in batches)
        return _deliver(pieces, target, records)

    receipt = delivered.asNondeterministic()(sql.struct(*frame.columns))
    return frame.select(receipt.alias("receipt")).select("receipt.*")


def _blocks(columns: _Columns) -> _Piece:
    starts, _, _, _, blocks = columns
    start = starts[0].as_py() if len(starts) else ""
    return _Piece(len(blocks), start, map(unpack, blocks))


def _encoded(
    rows: pa.StructArray, encoder: GroupEncoder, spec: Spec, relations: Relations
) -> _Piece:
    start = rows.field("start")[0].as_py() if len(rows) else ""
    release = release_of(rows)
    if release is not None:
        return _Piece(len(rows), start, iter(()), release=release)
    return _Piece(len(rows), start, encode_rows(rows, encoder, spec, relations), OpenMark.of(rows))


def encode_rows(
    rows: pa.StructArray, encoder: GroupEncoder, spec: Spec, relations: Relations
) -> Iterator[pa.RecordBatch]:
    """Rows of SQL stages as messages: one batch, or none without changes."""
    changes = changes_of(rows)
    if not len(changes):
        return
    route, key = changes.field("destination"), changes.field("message_key")
    payload, headers = changes.field("message_payload"), changes.field("message_headers")
    order = changes.field("message_group")
    batches = []
    for group, found in groups_of(changes, relations):
        at = pa.array(found)
        made = encoder.encode(
            group,
            destination=route.take(at).cast(pa.binary()),
            key=key.take(at).cast(pa.binary()) if spec.keyed else None,
        )
        batches.append(_with_columns(made, payload.take(at), headers.take(at), order.take(at)))
    if batches:
        yield in_order(batches)


def _with_columns(
    messages: pa.RecordBatch, payload: pa.Array, headers: pa.MapArray, group: pa.StructArray
) -> pa.RecordBatch:
    """The messages with these headers and groups, and these payloads in place of the shape's."""
    changed = {}
    if payload.null_count < len(payload):
        changed["payload"] = pc.coalesce(payload, messages["payload"])
    if headers.null_count < len(headers):
        changed["headers"] = of_texts(headers)
    if group.null_count < len(group):
        changed["group"] = group.cast(GROUP)
    for name, column in changed.items():
        at = messages.schema.get_field_index(name)
        messages = messages.set_column(at, messages.schema.field(at), column)
    return messages


def _deliver(
    pieces: Iterator[_Piece], target: Target, records: Path | None = None
) -> Iterator[pa.Array]:
    """One receipt per row; the last one follows the last flush."""
    waiting = 0
    with Delivery(target) as delivery:
        for piece in pieces:
            if waiting:
                yield pa.nulls(waiting, ROW)
            waiting, mark = piece.rows, piece.mark
            if mark is not None:
                assert records is not None
                delivery.own(mark.batch, records)
            if piece.release is not None:
                delivery.release(piece.release, Position.parse(piece.start))
            for messages in piece.batches:
                delivery.write(messages, Position.parse(piece.start))
            if mark is not None:
                delivery.reach(mark.reached, closed=mark.closed)
        if waiting:
            yield pa.concat_arrays([pa.nulls(waiting - 1, ROW), delivery.receipt()])
