"""A table to read: its columns as the stream describes them, and its ranges of pages.

A partitioned table is read leaf by leaf. One session reads one stretch of pages, so stretches are
the unit of parallel work. The last stretch of a leaf has no upper end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.postgres.names import TableName

if TYPE_CHECKING:
    from tailrace.schema import Relation, TypeName


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table with its columns, and the names of the columns' types that are not built in."""

    relation: Relation
    types: dict[int, TypeName]

    @property
    def name(self) -> TableName:
        """The table's name."""
        return TableName(self.relation.namespace, self.relation.name)


@dataclass(frozen=True, slots=True)
class Stretch:
    """The pages `first` to `end` (excluded) of one table or leaf. None: no limit on that side."""

    leaf: TableName
    first: int | None = None
    end: int | None = None
