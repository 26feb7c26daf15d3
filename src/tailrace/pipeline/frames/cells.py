"""The cells frame: one row per change, values as PostgreSQL's text in arrays, for expressions.

One schema serves every table. `relation` is the fingerprint of the table version that the cells
belong to; a plan covers certain versions (`tailrace.pipeline.plan`). `groups_of` turns the rows
back into groups after the expressions have run.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tailrace.change import Op
from tailrace.decode.group import Cells, Group
from tailrace.open_batch import OpenBatch
from tailrace.pipeline import enrich
from tailrace.pipeline.expressions.compile import fingerprint
from tailrace.pipeline.frames.changes import repeated
from tailrace.pipeline.frames.frame import arrow_schema, check_sizes, in_order, wanted_by
from tailrace.pipeline.lanes import Lanes
from tailrace.pipeline.spec import Spec
from tailrace.position import Position
from tailrace.tables import Prefixes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from tailrace.decode.group import Image
    from tailrace.pipeline.follow import Following
    from tailrace.pipeline.frames.frame import Slice
    from tailrace.pipeline.source.options import Options
    from tailrace.schema import Relation, TypeName

_MARK_S, _REPEAT_S = 0.01, 0.3
"""Marks of a log that has no pause are at least so far apart; a repeated one follows later."""
SCHEMA = StructType(
    [
        StructField("start", StringType()),
        StructField("lane", IntegerType()),
        StructField("lsn", LongType()),
        StructField("ordinal", LongType()),
        StructField("xid", LongType()),
        StructField("committed_at", TimestampType()),
        StructField("op", StringType()),
        StructField("schema", StringType()),
        StructField("table", StringType()),
        StructField("relation", LongType()),
        StructField("annotations", StringType()),
        StructField("before", ArrayType(StringType())),
        StructField("after", ArrayType(StringType())),
        StructField("unchanged", ArrayType(IntegerType())),
        StructField("absent", ArrayType(IntegerType())),
        StructField("looked_up", ArrayType(StringType())),
        StructField("prefix", StringType()),
        StructField("open_batch", StringType()),
        StructField("content", BinaryType()),
    ]
)
"""`start` is the position where the micro-batch begins. `open_batch` is null but for marks."""
_REACHED, _CLOSED, _RELEASED = "reached", "closed", "released"


@dataclass(frozen=True, slots=True)
class OpenMark:
    """How far an open batch has come, as a row among its changes.

    Spark passes rows on to a Python function when their Arrow batch has `maxBytesPerBatch`, and a
    Python worker passes them to Spark when a buffer of 64 KiB is full. So a mark has a cell of that
    size. It is the last buffer of its Arrow batch: no byte of the batch stays behind in a buffer.
    And Spark asks for the next row before it looks at the size, so that another row follows.
    """

    batch: OpenBatch
    reached: Position
    closed: bool

    def rows(self, size: int) -> pa.RecordBatch:
        """The rows of a mark that moves the rows before it through Spark."""
        mark = {
            "start": str(self.reached),
            "lane": 0,
            "op": _CLOSED if self.closed else _REACHED,
            "open_batch": str(self.batch),
        }
        schema = arrow_schema(SCHEMA)
        rows = pa.RecordBatch.from_pylist([mark, mark], schema=schema)
        offsets = pa.py_buffer(np.array([0, size, size], np.int32))
        cell = pa.Array.from_buffers(pa.binary(), 2, [None, offsets, _padding(size)])
        return rows.set_column(schema.get_field_index("content"), schema.field("content"), cell)

    @classmethod
    def of(cls, rows: pa.StructArray) -> OpenMark | None:
        """The last mark among rows of the frame."""
        column = rows.field("open_batch")
        if column.null_count == len(column):
            return None
        at = int(np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))[-1])
        return cls(
            OpenBatch.parse(column[at].as_py()),
            Position.parse(rows.field("start")[at].as_py()),
            rows.field("op")[at].as_py() == _CLOSED,
        )


def released_row(after: str, number: int) -> pa.RecordBatch:
    """The row of a release of parked messages: a mark, which expressions do not see."""
    row = {"start": after, "lane": 0, "op": _RELEASED, "open_batch": str(number)}
    return pa.RecordBatch.from_pylist([row], schema=arrow_schema(SCHEMA))


def release_of(rows: pa.StructArray) -> int | None:
    """The number of the release that a row of the frame stands for."""
    if len(rows) != 1 or rows.field("op")[0].as_py() != _RELEASED:
        return None
    return int(rows.field("open_batch")[0].as_py())


@cache
def _padding(size: int) -> pa.Buffer:
    return pa.py_buffer(bytes(size))


def changes_of(rows: pa.StructArray) -> pa.StructArray:
    """The rows without marks."""
    column = rows.field("open_batch")
    return rows if column.null_count == len(column) else rows.filter(column.is_null())


class CellFrame:
    """One row per change."""

    schema = SCHEMA

    def __init__(self, spec: Spec, source_url: str = "") -> None:
        self._spec = spec
        self._enricher = enrich.of_pipeline(spec.lookups, source_url) if spec.lookups else None

    @classmethod
    def of(cls, options: Options) -> CellFrame:
        """The frame for the pipeline in these options."""
        return cls(Spec.load(options.pipeline), options.source_url)

    def batches(self, part: Slice) -> Iterator[pa.RecordBatch]:
        """The rows of a slice, one batch per log entry."""
        schema = arrow_schema(SCHEMA)
        lanes = Lanes(self._spec.lanes, self._spec.lane_key, grouped=self._spec.grouped)
        if self._spec.lanes > 1:
            for entry in self._groups(part):
                lanes.join(entry)
        for entry in self._groups(part):
            yield in_order([self._batch(group, lanes, str(part.after), schema) for group in entry])

    def follow(
        self, following: Following, batch: OpenBatch, *, push_bytes: int
    ) -> Iterator[pa.RecordBatch]:
        """The rows of an open batch, as the log grows, with marks that move them on."""
        schema, lanes, start = arrow_schema(SCHEMA), Lanes(1, ()), following.reached
        # Before the first change: the task that delivers learns which batch it is.
        yield OpenMark(batch, start, closed=False).rows(0)
        marked, marked_s, repeated = start, time.monotonic(), True
        for part in following.parts():
            since_s = time.monotonic() - marked_s
            if part is not None and part.groups:
                groups = check_sizes(part.groups)
                yield in_order([self._batch(group, lanes, str(start), schema) for group in groups])
            if part is not None and not part.whole:
                continue
            new = following.reached > marked and (part is None or since_s >= _MARK_S)
            # Progress is noted a few times per second: the last mark of many comes once more.
            if new or (not repeated and since_s >= _REPEAT_S):
                marked, marked_s, repeated = following.reached, time.monotonic(), not new
                yield OpenMark(batch, marked, closed=False).rows(push_bytes)
        yield OpenMark(batch, following.reached, closed=True).rows(0)

    def _batch(self, group: Group, lanes: Lanes, start: str, schema: pa.Schema) -> pa.RecordBatch:
        looked_up = None if self._enricher is None else self._enricher.columns(group)
        return _batch(group, lanes, start, schema, looked_up)

    def _groups(self, part: Slice) -> Iterator[list[Group]]:
        spec = self._spec
        groups = part.groups(wanted=wanted_by(spec.wanted()), messages=Prefixes(spec.messages))
        return map(check_sizes, groups)


def _batch(
    group: Group,
    lanes: Lanes,
    start: str,
    schema: pa.Schema,
    looked_up: Sequence[pa.BinaryArray] | None,
) -> pa.RecordBatch:
    count, relation = len(group), group.relation
    number = None if relation is None else fingerprint(relation, group.types)
    missing = [] if group.before is None else _absent(group.before)
    values = [
        repeated(start, count),
        pa.array(lanes.of(group)),
        pa.array(group.lsn.astype(np.int64)),
        pa.array(group.ordinal.astype(np.int64)),
        pa.array(group.xid.astype(np.int64)),
        pa.array(group.committed_at).cast(pa.timestamp("us", "UTC")),
        repeated(group.op.value, count),
        repeated(None if relation is None else relation.namespace, count),
        repeated(None if relation is None else relation.name, count),
        pa.repeat(pa.scalar(number, pa.int64()), count),
        pa.nulls(count, pa.string()) if group.annotations is None else group.annotations,
        _interleaved(_values(group.before, count), count),
        _interleaved(_values(group.after, count), count),
        _indexes([] if group.after is None else _unchanged(group.after), count),
        _indexes([(at, np.ones(count, np.bool_)) for at in missing], count),
        _interleaved(looked_up, count),
        pa.nulls(count, pa.string()) if group.prefixes is None else group.prefixes,
        pa.nulls(count, pa.string()),
        pa.nulls(count, pa.binary()) if group.contents is None else group.contents,
    ]
    return pa.RecordBatch.from_arrays(values, schema=schema)


def _absent(image: Image) -> list[int]:
    return [at for at, cells in enumerate(image) if cells is None]


def _unchanged(image: Image) -> list[tuple[int, NDArray[np.bool_]]]:
    return [
        (at, cells.unchanged)
        for at, cells in enumerate(image)
        if cells is not None and cells.unchanged is not None
    ]


def _values(image: Image | None, count: int) -> list[pa.BinaryArray] | None:
    if image is None:
        return None
    return [pa.nulls(count, pa.binary()) if cells is None else cells.values for cells in image]


def _interleaved(columns: Sequence[pa.BinaryArray] | None, count: int) -> pa.ListArray:
    """Columns of text as one array per row.

    Columns (a, b), (c, d) become rows [a, c], [b, d].
    """
    if columns is None:
        return pa.nulls(count, pa.list_(pa.string()))
    width = len(columns)
    offsets = pa.array(np.arange(count + 1, dtype=np.int32) * width)
    if not width:
        return pa.ListArray.from_arrays(offsets, pa.array([], pa.string()))
    # Element `row * width + column` of the result is element `column * count + row` of the columns.
    order = np.arange(count * width).reshape(width, count).T.reshape(-1)
    values = pa.concat_arrays(columns).take(pa.array(order))
    return pa.ListArray.from_arrays(offsets, values.cast(pa.string()))


def _indexes(masks: list[tuple[int, NDArray[np.bool_]]], count: int) -> pa.ListArray:
    """The numbers whose mask is true, as one array per row."""
    table = np.zeros((count, len(masks)), np.bool_)
    for place, (_, mask) in enumerate(masks):
        table[:, place] = mask
    rows, places = np.nonzero(table)
    offsets = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=count))])
    numbers = np.array([at for at, _ in masks], np.int32)
    return pa.ListArray.from_arrays(
        pa.array(offsets.astype(np.int32)), pa.array(numbers[places].astype(np.int32))
    )


def groups_of(
    rows: pa.StructArray, relations: dict[int, tuple[Relation, dict[int, TypeName]]]
) -> Iterator[tuple[Group, NDArray[np.int64]]]:
    """Groups out of rows of the frame, each with the numbers of its rows.

    A group has one relation, one operation, and the same absent columns in all of its old rows. So
    rows are grouped by these four facts, with numpy: a loop over rows would cost more than the
    encoding.
    """
    field = {name: rows.field(name) for name in (f.name for f in rows.type)}
    op = field["op"].dictionary_encode()
    relation = field["relation"].fill_null(-1).to_numpy(zero_copy_only=False)
    facts = np.stack(
        [
            relation,
            op.indices.to_numpy(),
            field["before"].is_valid().to_numpy(zero_copy_only=False).astype(np.int64),
            _lengths(field["absent"]),
        ]
    )
    kinds, which = np.unique(facts, axis=1, return_inverse=True)
    which = which.reshape(-1)
    for number in range(kinds.shape[1]):
        chosen = np.flatnonzero(which == number)
        version, op_code, has_before, _ = kinds[:, number].tolist()
        known, types = relations.get(version, (None, {}))
        yield (
            _group(
                {name: values.take(pa.array(chosen)) for name, values in field.items()},
                Op(op.dictionary[op_code].as_py()),
                known,
                types,
                bool(has_before),
            ),
            chosen,
        )


def _group(
    field: dict[str, pa.Array],
    op: Op,
    relation: Relation | None,
    types: dict[int, TypeName],
    has_before: bool,
) -> Group:
    has_after = op in (Op.INSERT, Op.UPDATE, Op.READ)
    annotations = field["annotations"]
    width = 0 if relation is None else len(relation.columns)
    return Group(
        op=op,
        relation=relation,
        types=types,
        lsn=field["lsn"].to_numpy().astype(np.uint64),
        ordinal=field["ordinal"].to_numpy().astype(np.uint64),
        xid=field["xid"].to_numpy().astype(np.uint32),
        committed_at=field["committed_at"].cast(pa.int64()).to_numpy(),
        before=_cells(field["before"], field["absent"], width, absent=True) if has_before else None,
        after=_cells(field["after"], field["unchanged"], width, absent=False)
        if has_after
        else None,
        prefixes=field["prefix"] if op is Op.MESSAGE else None,
        contents=field["content"] if op is Op.MESSAGE else None,
        annotations=None if annotations.null_count == len(annotations) else annotations,
    )


def _cells(arrays: pa.ListArray, marked: pa.ListArray, width: int, *, absent: bool) -> Image:
    """An image out of one array per row; `marked` lists the columns whose value is not known."""
    count = len(arrays)
    values = arrays.flatten().cast(pa.binary())
    rows = np.repeat(np.arange(count), _lengths(marked))
    numbers = marked.flatten().to_numpy(zero_copy_only=False)
    image: list[Cells | None] = []
    for at in range(width):
        hit = rows[numbers == at]
        if absent and len(hit):
            image.append(None)
            continue
        mask = None
        if len(hit):
            mask = np.zeros(count, np.bool_)
            mask[hit] = True
        cells = values.take(pa.array(np.arange(count) * width + at))
        image.append(Cells(cells, mask))
    return tuple(image)


def _lengths(arrays: pa.ListArray) -> NDArray[np.int64]:
    lengths: NDArray[np.int64] = np.diff(arrays.offsets.to_numpy()).astype(np.int64)
    lengths[~arrays.is_valid().to_numpy(zero_copy_only=False)] = 0
    return lengths
