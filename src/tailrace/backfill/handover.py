"""Handover: which rows of a page are still current where the page enters the stream.

The pipeline delivers a page at some position after everything that the page sees. Before that
position the stream may hold changes that the page does not see. Every such change is newer than the
page's row and has been delivered, so the row is dropped. Positions do not decide which changes the
page sees, because commits become visible in another order than they are in the log; the
transactions of the page's snapshot do.

    page reads row 7 = a     log: UPDATE row 7 = b, not visible to the page
    stream: ... UPDATE row 7 = b | page            -> row 7 is dropped, or b would become a again
    stream: ... page | UPDATE row 7 = b ...        -> row 7 is delivered, then updated

A table without a key has no rows to look up: there a row is identified by all its values, and each
deletion before the page drops one of the equal rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.change import Op
from tailrace.decode.group import Group
from tailrace.decode.table_changes import table_changes
from tailrace.position import READS, Lsn, Position

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from tailrace.backfill.spool import Page, Spool
    from tailrace.decode.group import Image
    from tailrace.log.reader import Log
    from tailrace.schema import Relation

_PAGE_BITS = 36
"""An ordinal holds the page's number above these bits, and the row's number within the page."""


def page_position(page: Page, upto: Position) -> Position:
    """The position of a page's last row if the page follows `upto`: before any later commit."""
    return Position(Lsn(max(upto.lsn, page.lsn - 1)), _ordinal(page.number + 1) - 1)


def _ordinal(number: int) -> int:
    return READS | number << _PAGE_BITS


def current_rows(spool: Spool, page: Page, log: Log, upto: Position) -> Iterator[Group]:
    """The rows of a page that are current at `upto`, a position after everything the page sees."""
    replaced: _Replaced = _ReplacedKeys(page) if page.key else _DeletedRows(page)
    for group in unseen_changes(log, page, upto):
        replaced.note(group)
    first = _ordinal(page.number)
    taken_us = int(page.taken_at.timestamp() * 1_000_000)
    for count, image in spool.read(page):
        group = Group(
            op=Op.READ,
            relation=page.table.relation,
            types=page.table.types,
            lsn=np.full(count, upto.lsn, np.uint64),
            ordinal=np.arange(first, first + count, dtype=np.uint64),
            xid=np.zeros(count, np.uint32),
            committed_at=np.full(count, taken_us, np.int64),
            after=image,
        )
        first += count
        current = replaced.current(image, count)
        yield group if current.all() else group.take(np.flatnonzero(current))


def unseen_changes(log: Log, page: Page, upto: Position) -> Iterator[Group]:
    """The changes of a page's table up to a position that the page does not see."""
    relation = page.table.relation
    for group in table_changes(log, relation, page.since, upto):
        hidden = np.flatnonzero(~page.visibility.sees(group.xid))
        if len(hidden):
            yield group if len(hidden) == len(group) else group.take(hidden)


class _Replaced(ABC):
    """The rows of a page that changes in the stream have replaced or deleted."""

    def __init__(self, page: Page) -> None:
        self._names = page.key or tuple(column.name for column in page.table.relation.columns)
        self._indexes = _indexes(page.table.relation, self._names)
        self._all = False

    def note(self, group: Group) -> None:
        """Note changes that the page does not see."""
        assert group.relation is not None
        indexes = _indexes(group.relation, self._names)
        if group.op is Op.TRUNCATE or indexes is None:
            # A change without the page's key may be of any row: all rows are dropped. Nothing is
            # lost, because the backfill restarts when the table's key has changed.
            self._all = True
            return
        self._note(group, indexes)

    def current(self, image: Image, count: int) -> NDArray[np.bool_]:
        """Which of these rows are current."""
        if self._all:
            return np.zeros(count, np.bool_)
        assert self._indexes is not None
        return self._current(row_values(image, self._indexes, count))

    @abstractmethod
    def _note(self, group: Group, indexes: Sequence[int]) -> None: ...

    @abstractmethod
    def _current(self, rows: pa.BinaryArray) -> NDArray[np.bool_]: ...


class _ReplacedKeys(_Replaced):
    """By key: any change of a key replaces the page's row."""

    def __init__(self, page: Page) -> None:
        super().__init__(page)
        self._keys: list[pa.BinaryArray] = []

    def _note(self, group: Group, indexes: Sequence[int]) -> None:
        for image in (group.before, group.after):
            if image is not None and all(image[index] is not None for index in indexes):
                self._keys.append(row_values(image, indexes, len(group)))

    def _current(self, rows: pa.BinaryArray) -> NDArray[np.bool_]:
        if not self._keys:
            return np.ones(len(rows), np.bool_)
        replaced = pc.is_in(rows, pa.concat_arrays(self._keys))
        return ~np.asarray(replaced.to_numpy(zero_copy_only=False))


class _DeletedRows(_Replaced):
    """By all values, for tables without a key: how many equal rows the stream has deleted."""

    def __init__(self, page: Page) -> None:
        super().__init__(page)
        self._changes: list[tuple[Group, int, pa.BinaryArray]] = []
        """Per image: its changes, -1 for an old row or 1 for a new one, and the rows."""
        self._deleted: dict[bytes, int] | None = None

    def _note(self, group: Group, indexes: Sequence[int]) -> None:
        for image, step in ((group.before, -1), (group.after, 1)):
            if image is not None:
                self._changes.append((group, step, row_values(image, indexes, len(group))))

    def _current(self, rows: pa.BinaryArray) -> NDArray[np.bool_]:
        if self._deleted is None:
            self._deleted = self._count()
        current = np.ones(len(rows), np.bool_)
        if self._deleted:
            hit = pc.is_in(rows, pa.array(list(self._deleted), pa.binary()))
            for row in np.flatnonzero(hit.to_numpy(zero_copy_only=False)).tolist():
                value = rows[row].as_py()
                if self._deleted[value]:
                    self._deleted[value] -= 1
                    current[row] = False
        return current

    def _count(self) -> dict[bytes, int]:
        """How many of the page's rows with each value the stream has deleted.

        A deletion removes a row that the stream inserted before it, if there is one, and else one
        of the page's rows. So the count is how far the balance of a value falls below zero:

            changes of value v      balance     rows v dropped from the page
            insert, delete          1, 0        0
            delete, insert          -1, 0       1
            delete, insert,
            delete, delete          -1, 0,
                                    -1, -2      2
        """
        if not self._changes:
            return {}
        values = pa.concat_arrays([rows for *_, rows in self._changes]).dictionary_encode()
        code = values.indices.to_numpy()
        lsn = np.concatenate([group.lsn for group, *_ in self._changes])
        ordinal = np.concatenate([group.ordinal for group, *_ in self._changes])
        step = np.concatenate([np.full(len(group), step) for group, step, _ in self._changes])
        # By value, then in the order of the log; within an update the old row comes first (-1 < 1).
        order = np.lexsort((step, ordinal, lsn, code))
        code, step = code[order], step[order]
        starts = np.flatnonzero(np.r_[True, code[1:] != code[:-1]])
        lowest = _lowest_sums(step, starts)
        return {
            values.dictionary[int(value)].as_py(): -int(low)
            for value, low in zip(code[starts], lowest, strict=True)
            if low < 0
        }


def _lowest_sums(steps: NDArray[np.int64], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The lowest running sum of each run of steps; runs begin at `starts`.

    >>> _lowest_sums(np.array([-1, 1, -1, -1, 1, -1]), np.array([0, 4])).tolist()
    [-2, 0]
    """
    sums = np.cumsum(steps)
    before = np.r_[0, sums[starts[1:] - 1]]
    lowest: NDArray[np.int64] = np.minimum.reduceat(sums, starts) - before
    return lowest


def _indexes(relation: Relation, names: Sequence[str]) -> list[int] | None:
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
