"""Handover: the rows of a page as they are where the page enters the stream.

The pipeline delivers a page at some position after everything that the page sees. Before that
position the stream may hold changes that the page does not see. Every such change is newer than the
page's row, so the row is delivered with the change applied. Positions do not decide which changes
the page sees, because commits become visible in another order than they are in the log; the
transactions of the page's snapshot do.

    page reads row 7 = a     log: UPDATE row 7 = b, not visible to the page
    stream: ... UPDATE row 7 = b | page            -> row 7 = b is delivered, or it would be a again
    stream: ... page | UPDATE row 7 = b ...        -> row 7 = a is delivered, then updated

A table without a key has no rows to look up: there a row is identified by all its values, and each
deletion before the page drops one of the equal rows.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.backfill.latest import LatestRows
from tailrace.backfill.values import column_indexes, row_values
from tailrace.change import Op
from tailrace.decode.group import Group
from tailrace.decode.table_changes import table_changes
from tailrace.position import PAGE_BITS, READS, RELEASED, Lsn, Position

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from tailrace.backfill.spool import Page, Spool
    from tailrace.decode.group import Image
    from tailrace.log.reader import Log


def page_position(page: Page, upto: Position) -> Position:
    """The position of a page's last row if the page follows `upto`: before any later commit.

    The page's own LSN, if it is later: consumers compare it with that of their snapshot, and rows
    may differ without a change, for example after ALTER TABLE ... TYPE or ATTACH PARTITION.
    """
    return Position(Lsn(max(upto.lsn, page.lsn - 1)), _ordinal(page.number) + RELEASED - 1)


def _ordinal(number: int) -> int:
    return READS | number << PAGE_BITS


def current_rows(spool: Spool, page: Page, log: Log, upto: Position) -> Iterator[Group]:
    """The rows of a page as they are at `upto`, a position after everything the page sees."""
    page_rows = _changed_rows(spool, page, partial(unseen_changes, log, page, upto))
    first = 0
    taken_us = int(page.taken_at.timestamp() * 1_000_000)
    for count, image in spool.read(page):
        rows, current = (
            (np.arange(count), image) if page_rows is None else page_rows.current(count, image)
        )
        yield Group(
            op=Op.READ,
            relation=page.table.relation,
            types=page.table.types,
            lsn=np.full(len(rows), upto.lsn, np.uint64),
            ordinal=(rows + (_ordinal(page.number) + first)).astype(np.uint64),
            xid=np.zeros(len(rows), np.uint32),
            committed_at=np.full(len(rows), taken_us, np.int64),
            after=current,
        )
        first += count


def _changed_rows(
    spool: Spool, page: Page, changes: Callable[[], Iterator[Group]]
) -> LatestRows | _RemainingRows | None:
    """None if there are no changes, which saves reading the page's keys."""
    if next(changes(), None) is None:
        return None
    if page.key:
        return LatestRows(page, _keys(spool, page), changes)
    return _RemainingRows(page, changes())


def _keys(spool: Spool, page: Page) -> pa.BinaryArray:
    indexes = column_indexes(page.table.relation, page.key)
    assert indexes is not None
    found = [row_values(image, indexes, count) for count, image in spool.read(page)]
    return pa.concat_arrays(found) if found else pa.array([], pa.binary())


def unseen_changes(log: Log, page: Page, upto: Position) -> Iterator[Group]:
    """The changes of a page's table up to a position that the page does not see."""
    relation = page.table.relation
    for group in table_changes(log, relation, page.since, upto):
        hidden = np.flatnonzero(~page.visibility.sees(group.xid))
        if len(hidden):
            yield group if len(hidden) == len(group) else group.take(hidden)


class _RemainingRows:
    """The rows of a table without a key that the stream has not deleted, by all their values.

    If columns were dropped or renamed meanwhile, by the values of the others.
    """

    def __init__(self, page: Page, changes: Iterator[Group]) -> None:
        groups = list(changes)
        names = [column.name for column in page.table.relation.columns]
        for relation in {group.relation for group in groups if group.relation is not None}:
            names = [name for name in names if column_indexes(relation, [name]) is not None]
        indexes = column_indexes(page.table.relation, names)
        assert indexes is not None
        self._names, self._indexes = names, indexes
        self._all_gone = False
        self._changes: list[tuple[Group, int, pa.BinaryArray]] = []
        """Per image: its changes, -1 for an old row or 1 for a new one, and the rows."""
        for group in groups:
            self._note(group)
        self._deleted = self._count()

    def _note(self, group: Group) -> None:
        assert group.relation is not None
        if group.op is Op.TRUNCATE:
            self._all_gone = True
            return
        indexes = column_indexes(group.relation, self._names)
        assert indexes is not None
        for image, step in ((group.before, -1), (group.after, 1)):
            if image is not None:
                self._changes.append((group, step, row_values(image, indexes, len(group))))

    def current(self, count: int, image: Image) -> tuple[NDArray[np.int64], Image]:
        """Which rows of the next block exist, by their number in the block; their cells."""
        rows = np.flatnonzero(self._remaining(row_values(image, self._indexes, count)))
        if len(rows) == count:
            return rows, image
        return rows, tuple(cells and cells.take(rows) for cells in image)

    def _remaining(self, rows: pa.BinaryArray) -> NDArray[np.bool_]:
        current = np.full(len(rows), not self._all_gone)
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
