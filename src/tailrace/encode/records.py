"""Rows of `kafka.messages` as records, for a copy of the broker's topics.

A record keeps its topic, partition, offset, time, key, value and headers, as columns. A logical
message has no topic; its content asks the sink for records by their offsets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.change import Op
from tailrace.decode.typed import to_arrow
from tailrace.decode.types import resolve
from tailrace.errors import SchemaChangedError

if TYPE_CHECKING:
    from tailrace.decode.group import Group

RECORDS = pa.schema(
    [
        pa.field("topic", pa.int32()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.int64()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.string()),
        pa.field("lsn", pa.uint64(), nullable=False),
        pa.field("ordinal", pa.uint64(), nullable=False),
        pa.field("committed_at", pa.int64(), nullable=False),
    ]
)
"""One record per row, in order of position. `timestamp` is milliseconds since 1970, `headers` is
a JSON array of `[name, value]`."""
COLUMNS = ("topic_id", "partition_id", "offset", "timestamp", "key", "value", "headers")
_MOMENT = COLUMNS.index("timestamp")
_POSITION = ("lsn", "ordinal", "committed_at")


class Records:
    """Encodes groups of new rows and logical messages. Everything else is skipped."""

    def encode(
        self,
        group: Group,
        *,
        destination: pa.BinaryArray | None = None,
        key: pa.BinaryArray | None = None,
    ) -> pa.RecordBatch:
        """One record per row, in the group's order. A record has its own topic and key."""
        assert destination is None
        assert key is None
        position = [pa.array(getattr(group, name)) for name in _POSITION]
        if group.relation is None:
            assert group.contents is not None
            none = [pa.nulls(len(group), field.type) for field in RECORDS][: len(COLUMNS)]
            none[COLUMNS.index("value")] = group.contents
            return pa.RecordBatch.from_arrays([*none, *position], schema=RECORDS)
        if group.op not in (Op.INSERT, Op.READ) or group.after is None:
            return pa.RecordBatch.from_pylist([], schema=RECORDS)
        return pa.RecordBatch.from_arrays([*_columns(group), *position], schema=RECORDS)


def _columns(group: Group) -> list[pa.Array]:
    assert group.relation is not None
    assert group.after is not None
    held = {
        column.name: (column, cells)
        for column, cells in zip(group.relation.columns, group.after, strict=True)
        if cells is not None
    }
    if missing := [name for name in COLUMNS if name not in held]:
        raise SchemaChangedError(
            f"{group.relation.qualified_name} has no column {', '.join(missing)}"
        )
    found = []
    for name in COLUMNS:
        column, cells = held[name]
        type_ = resolve(column.type_oid, column.type_modifier, group.types)
        values, lost = to_arrow(cells.values, type_)
        if lost.any():
            raise SchemaChangedError(f"{group.relation.qualified_name}.{name} cannot be read")
        found.append(values)
    micros = pc.cast(found[_MOMENT], pa.int64())
    found[_MOMENT] = pc.divide(micros, 1000)
    return found
