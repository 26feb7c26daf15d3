"""The change frame: the changes of all tables under one schema, row images as JSON text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tailrace.change import Op
from tailrace.encode.facts import Facts, Origin
from tailrace.encode.pieces import join
from tailrace.encode.rows import Rows
from tailrace.encode.shapes.content import content_fields
from tailrace.encode.syntaxes.json import Json
from tailrace.pipeline.frames.frame import arrow_schema, in_order, wanted_by

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from tailrace.decode.group import Group, Image
    from tailrace.encode.pieces import Pieces
    from tailrace.pipeline.frames.frame import Slice
    from tailrace.pipeline.source.options import Options

SCHEMA = StructType(
    [
        StructField("id", StringType()),
        StructField("lsn", LongType()),
        StructField("ordinal", LongType()),
        StructField("xid", LongType()),
        StructField("committed_at", TimestampType()),
        StructField("op", StringType()),
        StructField("schema", StringType()),
        StructField("table", StringType()),
        StructField("key", StringType()),
        StructField("before", StringType()),
        StructField("after", StringType()),
        StructField("unchanged", ArrayType(StringType())),
        StructField("annotations", StringType()),
    ]
)
_NO_ORIGIN = Origin(database="", system_identifier=0)
_JSON = Json()


class ChangeFrame:
    """One row per change."""

    schema = SCHEMA

    def __init__(self, options: Options) -> None:
        self._options = options

    def batches(self, part: Slice) -> Iterator[pa.RecordBatch]:
        """The changes of a slice, one batch per log entry."""
        messages = self._options.messages
        entries = part.groups(
            wanted=wanted_by(self._options.tables),
            messages=lambda _: messages,
        )
        schema = arrow_schema(SCHEMA)
        for entry in entries:
            yield in_order([_batch(group, schema) for group in entry])


def _batch(group: Group, schema: pa.Schema) -> pa.RecordBatch:
    count, relation = len(group), group.relation
    facts, rows = Facts(group, _NO_ORIGIN, _JSON), Rows(group, _JSON, native=True)
    if group.op is Op.MESSAGE:
        after = _text(_JSON.object(content_fields(facts)), count)
    else:
        after = _image(rows, group.after, count)
    values = [
        facts.ids.cast(pa.string()),
        pa.array(group.lsn.astype(np.int64)),
        pa.array(group.ordinal.astype(np.int64)),
        pa.array(group.xid.astype(np.int64)),
        pa.array(group.committed_at).cast(pa.timestamp("us", "UTC")),
        repeated(group.op.value, count),
        repeated(None if relation is None else relation.namespace, count),
        repeated(None if relation is None else relation.name, count),
        pa.nulls(count, pa.string()) if relation is None else _key(rows, count),
        _image(rows, group.before, count),
        after,
        unchanged_names(group),
        pa.nulls(count, pa.string()) if group.annotations is None else group.annotations,
    ]
    return pa.RecordBatch.from_arrays(values, schema=schema)


def _key(rows: Rows, count: int) -> pa.StringArray:
    pieces = rows.key()
    return pa.nulls(count, pa.string()) if pieces == (_JSON.null,) else _text(pieces, count)


def _image(rows: Rows, image: Image | None, count: int) -> pa.StringArray:
    return pa.nulls(count, pa.string()) if image is None else _text(rows.object(image), count)


def _text(pieces: Pieces, count: int) -> pa.StringArray:
    if all(isinstance(piece, bytes) for piece in pieces):
        constant = b"".join(piece for piece in pieces if isinstance(piece, bytes))
        return repeated(constant.decode(), count)
    return join(pieces, null=_JSON.null).cast(pa.string())


def repeated(value: str | None, count: int) -> pa.StringArray:
    """The same text in every row."""
    return pa.repeat(pa.scalar(value, pa.string()), count)


def unchanged_names(group: Group) -> pa.ListArray:
    """The unchanged columns of each new row, which PostgreSQL did not send."""
    masks = {}
    if group.after is not None and group.relation is not None:
        for column, cells in zip(group.relation.columns, group.after, strict=True):
            if cells is not None and cells.unchanged is not None:
                masks[column.name] = cells.unchanged
    return names_where(masks, len(group))


def names_where(masks: dict[str, NDArray[np.bool_]], count: int) -> pa.ListArray:
    """The names whose mask is true, as one list per row.

    Masks a = [1, 0] and b = [1, 1] become ["a", "b"], ["b"].
    """
    if not masks:
        no_offsets = pa.array(np.zeros(count + 1, np.int32))
        return pa.ListArray.from_arrays(no_offsets, pa.array([], pa.string()))
    table = np.zeros((count, len(masks)), np.bool_)
    for number, mask in enumerate(masks.values()):
        table[:, number] = mask
    rows, columns = np.nonzero(table)
    offsets = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=count))])
    names = pa.array(list(masks), pa.string()).take(pa.array(columns))
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), names)
