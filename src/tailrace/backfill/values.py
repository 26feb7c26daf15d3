"""Columns of a row as one value, by which rows are compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.decode.group import Image
    from tailrace.schema import Relation


def column_indexes(relation: Relation, names: Sequence[str]) -> list[int] | None:
    """The places of columns in a relation; None if it lacks one."""
    columns = [column.name for column in relation.columns]
    if any(name not in columns for name in names):
        return None
    return [columns.index(name) for name in names]


def row_values(image: Image, indexes: Sequence[int], count: int) -> pa.BinaryArray:
    """Some columns of each row as one value: equal for equal rows only. NULL is not empty.

    Each cell is preceded by its length, so ("a", "bc") and ("ab", "c") differ.
    """
    parts: list[pa.Array] = []
    for index in indexes:
        cells = image[index]
        values = pa.nulls(count, pa.binary()) if cells is None else cells.values
        lengths = pc.fill_null(pc.binary_length(values).cast(pa.string()), "").cast(pa.binary())
        parts += [lengths, pc.fill_null(values, b"")]
    if not parts:
        return pa.repeat(pa.scalar(b"", pa.binary()), count)
    return pc.binary_join_element_wise(*parts, pa.scalar(b":", pa.binary()))
