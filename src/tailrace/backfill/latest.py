"""The rows of a page as they are at a later position, found by key.

Between a page and its place in the stream there may be changes that the page does not see. They are
newer than the page's rows, so a row is delivered with them applied:

    page                      change that the page does not see      delivered
    7: n = 1, doc = BIG       UPDATE 7: n = 2, doc unchanged         7: n = 2, doc = BIG
    8                         DELETE 8                               nothing
    9                         UPDATE 9 -> 90                         90
    10                        DELETE 10, INSERT 10                   nothing: the stream has the row

The change itself is in the stream too, but it may be no substitute for the row: it lacks large
values that were not modified, and the pipeline's filter may have removed it.

A row is left out, because the stream has its latest version, where the changes cannot be applied:
the table's columns are not those of the page, or two rows may have had the same key for a moment,
as a deferrable primary key allows under REPLICA IDENTITY FULL.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.backfill.values import column_indexes, row_values
from tailrace.change import Op
from tailrace.decode.group import Cells
from tailrace.schema import ReplicaIdentity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from tailrace.backfill.spool import Page
    from tailrace.decode.group import Group, Image
    from tailrace.schema import Relation


class LatestRows:
    """A page's rows with the changes applied that the page does not see.

    `keys` are those of the page's rows. `changes` reads the changes, as often as needed.
    """

    def __init__(
        self, page: Page, keys: pa.BinaryArray, changes: Callable[[], Iterator[Group]]
    ) -> None:
        self._noted = _Noted(page)
        known = keys
        while True:
            self._noted.read(changes(), known)
            moved = self._noted.moved_to(known)
            if not len(moved):
                break
            # Rows of the page now have these keys; they may have changed under them.
            known = pa.concat_arrays([known, moved])
        self._rows = _Lineage(keys, self._noted)
        self._first = 0

    def current(self, count: int, image: Image) -> tuple[NDArray[np.int64], Image]:
        """Which rows of the next block exist, by their number in the block; their cells."""
        first, self._first = self._first, self._first + count
        rows = np.arange(count)
        if self._noted.all_gone:
            rows = rows[:0]
        elif self._rows.gone:
            gone = [row - first for row in self._rows.gone if first <= row < first + count]
            rows = np.setdiff1d(rows, gone, assume_unique=True)
        applied = {
            place: sources
            for place, row in enumerate((rows + first).tolist() if self._rows.sources else ())
            if (sources := self._rows.sources.get(row))
        }
        if len(rows) == count and not applied:
            return rows, image
        return rows, tuple(
            cells and self._applied(column, cells, rows, applied)
            for column, cells in enumerate(image)
        )

    def _applied(
        self,
        column: int,
        cells: Cells,
        rows: NDArray[np.int64],
        applied: dict[int, dict[int, tuple[int, int]]],
    ) -> Cells:
        """One column of these rows, with the values of changes where there are any."""
        values = {place: sources[column] for place, sources in applied.items() if column in sources}
        if not values:
            return cells.take(rows)
        groups = sorted({group for group, _ in values.values()})
        arrays, offsets = [cells.values], {}
        for group in groups:
            offsets[group] = sum(map(len, arrays))
            arrays.append(self._noted.values(group, column))
        picked = rows.copy()
        for place, (group, row) in values.items():
            picked[place] = offsets[group] + row
        return Cells(pa.concat_arrays(arrays).take(pa.array(picked)))


@dataclass(frozen=True, slots=True)
class _Changes:
    """Changes of one group that concern the page, with the keys of their old and new rows."""

    group: Group
    old: pa.BinaryArray
    new: pa.BinaryArray
    applicable: bool
    """Whether the columns are those of the page."""

    @property
    def shared_keys(self) -> bool:
        """Whether two rows may have one key within a transaction: the index of an identity is not
        deferrable, but under FULL the key is a primary key, which may be."""
        assert self.group.relation is not None
        return self.group.relation.replica_identity is ReplicaIdentity.FULL


class _Noted:
    """The changes that concern the page's rows."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._columns = _columns(page.table.relation)
        self.changes: list[_Changes] = []
        self.all_gone = False
        """None of the page's rows can be found by its key any more."""

    def read(self, groups: Iterator[Group], known: pa.BinaryArray) -> None:
        """Note the changes of rows with these keys."""
        self.changes = []
        for group in groups:
            self._note(group, known)

    def _note(self, group: Group, known: pa.BinaryArray) -> None:
        assert group.relation is not None
        indexes = column_indexes(group.relation, self._page.key)
        if group.op is Op.TRUNCATE or indexes is None or _without_key(group.before, indexes):
            # A change without the page's key may be of any row. Nothing is lost: the backfill
            # restarts when the table's key has changed.
            self.all_gone = True
            return
        old, new = _keys(group, indexes)
        concerned = np.flatnonzero(_is_in(old, known) | _is_in(new, known))
        if len(concerned):
            some = pa.array(concerned)
            applicable = _columns(group.relation) == self._columns
            self.changes.append(
                _Changes(group.take(concerned), old.take(some), new.take(some), applicable)
            )

    def moved_to(self, known: pa.BinaryArray) -> pa.BinaryArray:
        """The keys that rows with known keys have now."""
        found = [
            each.new.filter(pc.and_(pc.not_equal(each.old, each.new), pc.is_in(each.old, known)))
            for each in self.changes
            if each.group.op is Op.UPDATE
        ]
        new = pa.concat_arrays(found) if found else known[:0]
        return pc.unique(new.filter(pc.invert(pc.is_in(new, known))))

    def in_order(self) -> Iterator[tuple[int, int]]:
        """Number of the group and of the row within it, in the order of the log."""
        if not self.changes:
            return iter(())
        groups = [each.group for each in self.changes]
        place = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
        row = np.concatenate([np.arange(len(group)) for group in groups])
        lsn = np.concatenate([group.lsn for group in groups])
        ordinal = np.concatenate([group.ordinal for group in groups])
        order = np.lexsort((ordinal, lsn))
        return zip(place[order].tolist(), row[order].tolist(), strict=True)

    def values(self, group: int, column: int) -> pa.BinaryArray:
        """A column of the new rows of a group."""
        after = self.changes[group].group.after
        assert after is not None
        cells = after[column]
        assert cells is not None
        return cells.values

    def sources(self, group: int, row: int) -> Iterator[int]:
        """The columns of which a change has the value."""
        after = self.changes[group].group.after
        assert after is not None
        for column, cells in enumerate(after):
            if cells is not None and (cells.unchanged is None or not cells.unchanged[row]):
                yield column


class _Lineage:
    """What has become of the page's rows."""

    def __init__(self, keys: pa.BinaryArray, noted: _Noted) -> None:
        self.gone: set[int] = set()
        self.sources: dict[int, dict[int, tuple[int, int]]] = defaultdict(dict)
        """By row and column: the change with its latest value, as `_Noted.in_order` gives it."""
        self._moved_at: dict[int, int] = {}
        self._rows = self._touched(keys, noted)
        for group, row in noted.in_order():
            self._apply(noted, group, row)

    @staticmethod
    def _touched(keys: pa.BinaryArray, noted: _Noted) -> dict[bytes, list[int]]:
        """Rows by their key, for keys that occur in a change."""
        rows: dict[bytes, list[int]] = defaultdict(list)
        if noted.changes:
            changed = pa.concat_arrays(
                [key for each in noted.changes for key in (each.old, each.new)]
            )
            for row in np.flatnonzero(_is_in(keys, changed)).tolist():
                rows[keys[row].as_py()].append(row)
        return rows

    def _apply(self, noted: _Noted, group: int, row: int) -> None:
        changes = noted.changes[group]
        old, new = changes.old[row].as_py(), changes.new[row].as_py()
        here = self._rows[old]
        if not here:
            return
        found = here.pop(0)
        lsn = int(changes.group.lsn[row])
        moved = changes.group.op is Op.UPDATE and old != new
        if (
            changes.group.op is not Op.UPDATE
            or not changes.applicable
            # Whether it is this row, or one that had the key before, is unknown.
            or (changes.shared_keys and self._moved_at.get(found) == lsn)
        ):
            self.gone.add(found)
            return
        if moved:
            self._moved_at[found] = lsn
        self._rows[new].append(found)
        for column in noted.sources(group, row):
            self.sources[found][column] = group, row


def _columns(relation: Relation) -> list[tuple[str, int]]:
    return [(column.name, column.type_oid) for column in relation.columns]


def _without_key(image: Image | None, indexes: Sequence[int]) -> bool:
    return image is not None and any(image[index] is None for index in indexes)


def _keys(group: Group, indexes: Sequence[int]) -> tuple[pa.BinaryArray, pa.BinaryArray]:
    """The keys of the old and the new rows; equal where there is only one of them."""
    if group.after is None:
        assert group.before is not None
        old = row_values(group.before, indexes, len(group))
        return old, old
    after = list(group.after)
    for index in indexes:
        cells, before = after[index], group.before and group.before[index]
        if cells is not None and cells.unchanged is not None and before:
            # A large key that the update did not modify.
            values = pc.if_else(pa.array(cells.unchanged), before.values, cells.values)
            after[index] = Cells(values)
    new = row_values(tuple(after), indexes, len(group))
    return (new if group.before is None else row_values(group.before, indexes, len(group))), new


def _is_in(values: pa.BinaryArray, known: pa.BinaryArray) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = pc.is_in(values, known).to_numpy(zero_copy_only=False)
    return found
