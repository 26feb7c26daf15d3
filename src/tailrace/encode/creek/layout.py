"""Shape `creek`: Creek's events in Avro, each with the fingerprint of its schema.

A message is a packet; `tailrace.encode.creek.schema` describes packets and schemas. `sent_at` is
the time of encoding. `last_lsn` is the table's previous transaction if it was read in the same
group, else 0/0.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.change import Op
from tailrace.decode import columns
from tailrace.encode.creek import avro
from tailrace.encode.creek import schema as creek
from tailrace.encode.facts import Outline
from tailrace.encode.pieces import Piece, Pieces, join, where
from tailrace.encode.rows import checked
from tailrace.encode.syntaxes import digits
from tailrace.errors import ConfigError
from tailrace.jetstream.names import token

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from tailrace.decode.group import Cells, Group, Image
    from tailrace.encode.facts import Origin
    from tailrace.schema import Column, Relation

_OPS = {
    Op.INSERT: "c", Op.UPDATE: "u", Op.DELETE: "d", Op.TRUNCATE: "t", Op.READ: "r",
}  # fmt: skip
_PRESENT = b"\x02"
"""The second branch of a union, after null."""
_ESCAPED_END = bytes([creek.END[0] | 0x80, 0]) + creek.END[1:]


class CreekLayout:
    """Creek's events. Changes with unchanged large values have a schema of their own."""

    namespaced: ClassVar[bool] = True

    def messages(
        self, group: Group, origin: Origin, _destination: str | pa.BinaryArray
    ) -> tuple[pa.BinaryArray, pa.BinaryArray]:
        """The event id and the packet of each change."""
        if group.relation is None:
            raise ConfigError("shape creek does not support logical messages")
        missing = _missing(group)
        payload = self._events(group, origin, partial=False)
        if missing is not None:
            rows = np.flatnonzero(missing)
            partial = self._events(group.take(rows), origin, partial=True)
            payload = _replaced(payload, missing, partial)
        # Producers of several servers may share a stream, and their LSNs may be equal.
        database = f"{token(origin.database)}-wal".encode()
        return Outline(group, origin).id_with(database), payload

    def _events(self, group: Group, origin: Origin, *, partial: bool) -> pa.BinaryArray:
        assert group.relation is not None
        schema = creek.event(
            group.relation, group.types, partial=partial, namespaced=self.namespaced
        )
        outline = Outline(group, origin)
        pieces = [*_head(outline, schema), *_images(group, partial=partial)]
        return _packets(_joined([creek.MARK + schema.fingerprint, *pieces]))


class PlainCreekLayout(CreekLayout):
    """The events of Creek's first release: their schemas have no namespaces."""

    namespaced = False


def row_messages(group: Group) -> pa.BinaryArray:
    """The rows of a snapshot as packets."""
    assert group.relation is not None
    assert group.after is not None
    body = _joined(_record(group, group.relation, group.after, partial=False))
    # A row of small numbers may equal the end marker: then its first number is written in two
    # bytes.
    ends = pc.equal(body, columns.constant(creek.END))
    return _packets(pc.if_else(ends, pa.scalar(_ESCAPED_END, pa.binary()), body))


def _joined(pieces: Iterable[Piece]) -> pa.BinaryArray:
    return join([*pieces, b""], null=avro.NULL)


def _packets(body: pa.BinaryArray) -> pa.BinaryArray:
    """Packets: each body preceded by its length."""
    lengths = np.diff(columns.offsets(body)).astype(">u4")
    return join([b"\0\0", columns.fixed(lengths[:, None].view(np.uint8)), body])


def _missing(group: Group) -> NDArray[np.bool_] | None:
    """Which changes have unchanged values, which PostgreSQL left out."""
    missing = np.zeros(len(group), bool)
    for cells in group.after or ():
        if cells is not None and cells.unchanged is not None:
            missing |= cells.unchanged
    return missing if missing.any() else None


def _replaced(
    payload: pa.BinaryArray, at: NDArray[np.bool_], others: pa.BinaryArray
) -> pa.BinaryArray:
    places = np.arange(len(payload))
    places[at] = len(payload) + np.arange(len(others))
    return pa.concat_arrays([payload, others]).take(pa.array(places))


def _head(outline: Outline, schema: creek.Schema) -> Pieces:
    """The fields before the row images."""
    group, origin, runs = outline.group, outline.origin, outline.runs
    assert group.relation is not None
    lsn = outline.each_run(group.lsn)
    before = np.append(np.uint64(0), lsn[:-1])
    op = "u_pk" if group.op is Op.UPDATE and group.before is not None else _OPS[group.op]

    def text(value: str) -> bytes:
        return avro.string(value.encode())

    return (
        text(schema.name),
        text(origin.slot or origin.database),
        *runs.spread((avro.longs(outline.each_run(group.committed_at)),)),
        text(origin.database) + text(group.relation.namespace) + text(group.relation.name),
        *runs.spread(
            (
                avro.longs(outline.each_run(group.xid)),
                *avro.strings(digits.lsn_text(before)),
                *avro.strings(digits.lsn_text(lsn)),
            )
        ),
        avro.long(creek.OPS.index(op)),
        avro.long(time.time_ns() // 1000),
    )


def _images(group: Group, *, partial: bool) -> Pieces:
    """`before`, `after`, and in partial changes the names of unchanged columns."""
    assert group.relation is not None
    pieces: list[Piece] = [*_before(group)]
    if group.after is None:
        pieces.append(avro.NULL)
    else:
        pieces += [_PRESENT, *_record(group, group.relation, group.after, partial=partial)]
    return (*pieces, _unchanged(group)) if partial else tuple(pieces)


def _before(group: Group) -> Pieces:
    """The old key or row; the present key for an update that does not change it."""
    assert group.relation is not None
    image = group.before
    if image is None and group.op is Op.UPDATE:
        image = group.after
    keys = [column.key for column in group.relation.columns]
    if image is None or not any(keys):
        return (avro.NULL,)
    known = np.ones(len(group), bool)
    for cells, key in zip(image, keys, strict=True):
        if key and cells is None:
            return (avro.NULL,)
        if key and cells is not None and cells.unchanged is not None:
            known &= ~cells.unchanged
    record = [_PRESENT, *_record(group, group.relation, image, partial=False, keys=True)]
    if known.all():
        return tuple(record)
    return (where(known, join(record, null=avro.NULL), avro.NULL),)


def _record(
    group: Group, relation: Relation, image: Image, *, partial: bool, keys: bool = False
) -> Pieces:
    pieces: list[Piece] = []
    members = creek.fields(relation, group.types, partial=partial)
    for (column, field), cells in zip(members, image, strict=True):
        if column.key or not keys:
            pieces += _member(relation, column, field, cells)
    return tuple(pieces)


def _member(relation: Relation, column: Column, field: creek.Field, cells: Cells | None) -> Pieces:
    if cells is None:
        return (avro.NULL,)
    values = checked(relation, column, field.type, cells.values)
    return avro.cells(field, values)


def _unchanged(group: Group) -> pa.BinaryArray:
    """An array of the names of unchanged columns. Few sets are distinct: each is encoded once."""
    assert group.relation is not None
    assert group.after is not None
    names, masks = [], []
    for column, cells in zip(group.relation.columns, group.after, strict=True):
        if cells is not None and cells.unchanged is not None:
            names.append(avro.string(column.name.encode()))
            masks.append(cells.unchanged)
    table = np.column_stack(masks)
    _, first, which = np.unique(
        np.packbits(table, axis=1), axis=0, return_index=True, return_inverse=True
    )
    lists = []
    for row in first:
        unchanged = [name for name, hit in zip(names, table[row], strict=True) if hit]
        lists.append(avro.long(len(unchanged)) + b"".join(unchanged) + avro.NULL)
    return pa.array(lists, pa.binary()).take(pa.array(which.reshape(-1)))
