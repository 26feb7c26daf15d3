"""Row images → encoded objects, with the four states of a value kept apart.

| state     | in the object                                                  |
|-----------|----------------------------------------------------------------|
| value     | the encoded value                                              |
| NULL      | the encoding's null                                            |
| unchanged | left out (TOAST); `unchanged` lists the names                  |
| absent    | left out: the column is not part of the old key                |
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tailrace.decode import columns
from tailrace.decode.types import Kind, Type, resolve
from tailrace.encode.pieces import Pieces, join, where
from tailrace.encode.syntaxes.syntax import Field
from tailrace.errors import PoisonedError
from tailrace.schema import ReplicaIdentity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from tailrace.decode.group import Cells, Group, Image
    from tailrace.encode.syntaxes.syntax import Syntax
    from tailrace.schema import Column, Relation

_ALWAYS_ASCII = frozenset(
    {
        Kind.BOOL, Kind.INT2, Kind.INT4, Kind.INT8, Kind.OID, Kind.FLOAT4, Kind.FLOAT8,
        Kind.NUMERIC, Kind.BYTEA, Kind.DATE, Kind.TIME, Kind.TIMETZ, Kind.TIMESTAMP,
        Kind.TIMESTAMPTZ, Kind.INTERVAL, Kind.UUID, Kind.NETWORK, Kind.BITS, Kind.LSN,
    }
)  # fmt: skip


@dataclass(frozen=True)
class Rows:
    """The row images of a group. `native` encodes arrays, hstore and vectors as structures."""

    group: Group
    syntax: Syntax
    native: bool

    @cached_property
    def relation(self) -> Relation:
        """The table; logical messages have none and are not encoded here."""
        assert self.group.relation is not None
        return self.group.relation

    @cached_property
    def types(self) -> tuple[Type, ...]:
        """The type of each column."""
        return tuple(
            resolve(column.type_oid, column.type_modifier, self.group.types)
            for column in self.relation.columns
        )

    @property
    def keyed(self) -> bool:
        """Whether the relation has a key.

        Under REPLICA IDENTITY FULL PostgreSQL marks all columns, which is not a key.
        """
        full = self.relation.replica_identity is ReplicaIdentity.FULL
        return not full and any(column.key for column in self.relation.columns)

    def columns(self, image: Image) -> Iterator[tuple[Column, Type, Cells | None]]:
        """The columns with their types and cells."""
        return zip(self.relation.columns, self.types, image, strict=True)

    def cells(self, column: Column, type_: Type, values: pa.BinaryArray) -> Pieces:
        """The encoded cells of a column."""
        values = checked(self.relation, column, type_, values)
        return self.syntax.cells(type_, values, native=self.native)

    def object(
        self, image: Image, *, absent_as_null: bool = False, placeholder: bytes | None = None
    ) -> Pieces:
        """One object per row. Unchanged values are left out, or written as `placeholder`."""
        fields = self.fields(image, absent_as_null=absent_as_null, placeholder=placeholder)
        return self.syntax.object(fields)

    def fields(
        self, image: Image, *, absent_as_null: bool = False, placeholder: bytes | None = None
    ) -> list[Field]:
        """The members of such an object."""
        fields = []
        for column, type_, cells in self.columns(image):
            if cells is None:
                if absent_as_null:
                    fields.append(Field(column.name, (self.syntax.null,)))
                continue
            value = self.cells(column, type_, cells.values)
            mask = _if_any(cells.unchanged)
            if mask is not None and placeholder is not None:
                value = (where(mask, placeholder, join(value, null=self.syntax.null)),)
                mask = None
            fields.append(Field(column.name, value, None if mask is None else ~mask))
        return fields

    def key(self) -> Pieces:
        """An object with the columns of the key: of the new row, or of the old row of a delete."""
        fields = [
            Field(column.name, self.cells(column, type_, values))
            for column, type_, values in self.key_columns()
        ]
        return self.syntax.object(fields) if fields else (self.syntax.null,)

    def key_columns(self) -> Iterator[tuple[Column, Type, pa.BinaryArray]]:
        """The values of the key's columns; empty without a key.

        PostgreSQL may leave a large unchanged key column out of the new row; the old row has it.
        """
        group = self.group
        image = group.before if group.after is None else group.after
        if image is None or not self.keyed:
            return
        for at, (column, type_, cells) in enumerate(self.columns(image)):
            if column.key and cells is not None:
                mask = _if_any(cells.unchanged)
                old = None if group.before is None else group.before[at]
                if mask is None or old is None:
                    yield column, type_, cells.values
                else:
                    yield column, type_, where(mask, old.values, cells.values)

    def unchanged(self, image: Image | None) -> tuple[Pieces, NDArray[np.bool_]] | None:
        """The names of unchanged columns as one list per row, and which rows have any.

        Rows share few distinct sets of unchanged columns. Each set is encoded once: the masks of a
        row are packed into bytes, and `np.unique` numbers the distinct ones.
        """
        names, masks = [], []
        for column, _, cells in self.columns(image) if image is not None else ():
            mask = None if cells is None else _if_any(cells.unchanged)
            if mask is not None:
                names.append(column.name)
                masks.append(mask)
        if not masks:
            return None
        table = np.column_stack(masks)
        packed = np.packbits(table, axis=1)
        _, first, which = np.unique(packed, axis=0, return_index=True, return_inverse=True)
        lists = [
            self.syntax.constant([name for name, hit in zip(names, table[row], strict=True) if hit])
            for row in first
        ]
        column_of_lists = pa.array(lists, pa.binary()).take(pa.array(which.reshape(-1)))
        some: NDArray[np.bool_] = np.any(table, axis=1)
        return (column_of_lists,), some


def checked(
    relation: Relation, column: Column, type_: Type, values: pa.BinaryArray
) -> pa.BinaryArray:
    """The values without bytes under nulls; `PoisonedError` for text that is not UTF-8."""
    values = columns.tidy(values)
    if type_.kind not in _ALWAYS_ASCII and not columns.is_utf8(values):
        raise PoisonedError(
            f"column {column.name} of {relation.qualified_name} contains text that is not UTF-8",
            hint="Correct the values, or leave the column out with `select`.",
        )
    return values


def _if_any(mask: NDArray[np.bool_] | None) -> NDArray[np.bool_] | None:
    return mask if mask is not None and mask.any() else None
