"""Decoded changes as columns: cells, row images, groups.

A group holds changes of one version of one relation, one operation and one kind of old row. All its
columns have the same length. The changes of several groups are ordered by position.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tailrace.change import Op
    from tailrace.schema import Relation, TypeName


@dataclass(frozen=True, slots=True)
class Cells:
    """One column of a row image: PostgreSQL's text for each value, in UTF-8.

    `values` is a `pa.BinaryArray`; a null in it is an SQL NULL, or an unchanged value where
    `unchanged` (None: nowhere) is true.
    """

    values: pa.BinaryArray
    unchanged: NDArray[np.bool_] | None = None

    def take(self, rows: NDArray[np.int64]) -> Cells:
        """These rows, in this order."""
        unchanged = None if self.unchanged is None else self.unchanged[rows]
        return Cells(self.values.take(pa.array(rows)), unchanged)


Image = tuple[Cells | None, ...]
"""One row image: a `Cells` for every column of the relation; None for a column that is absent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Changes of one relation and one operation.

    `types` names the non-built-in types the relation uses, by oid. `before` and `after` are None
    if the operation has no such image. `committed_at` counts microseconds since 1970 UTC.
    `annotations` is the JSON text of the transaction annotations in force, null for rows without;
    None if no row has any. Logical messages have no relation: they have `prefixes` and `contents`
    instead of images.
    """

    op: Op
    relation: Relation | None
    types: dict[int, TypeName] = field(default_factory=dict)
    lsn: NDArray[np.uint64]
    ordinal: NDArray[np.uint64]
    xid: NDArray[np.uint32]
    committed_at: NDArray[np.int64]
    before: Image | None = None
    after: Image | None = None
    prefixes: pa.StringArray | None = None
    contents: pa.BinaryArray | None = None
    annotations: pa.StringArray | None = None

    def __len__(self) -> int:
        return len(self.lsn)

    def take(self, rows: NDArray[np.int64]) -> Group:
        """These changes, in this order."""
        arrow = pa.array(rows)
        return replace(
            self,
            lsn=self.lsn[rows],
            ordinal=self.ordinal[rows],
            xid=self.xid[rows],
            committed_at=self.committed_at[rows],
            before=_take(self.before, rows),
            after=_take(self.after, rows),
            prefixes=None if self.prefixes is None else self.prefixes.take(arrow),
            contents=None if self.contents is None else self.contents.take(arrow),
            annotations=None if self.annotations is None else self.annotations.take(arrow),
        )


def _take(image: Image | None, rows: NDArray[np.int64]) -> Image | None:
    if image is None:
        return None
    return tuple(None if cells is None else cells.take(rows) for cells in image)
