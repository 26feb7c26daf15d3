"""Transactions that stand in the log and that the next snapshot may not see.

Commits become visible in another order than they stand in the log, so changes from before a
snapshot may be newer than its rows. The log is read once, along with the backfill, for those of its
table; what a snapshot sees every later one sees too, so hardly any is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tailrace.decode.table_changes import table_changes
from tailrace.position import Lsn

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tailrace.log.reader import Log
    from tailrace.position import Position
    from tailrace.schema import Relation
    from tailrace.visibility import Visibility


class Unseen:
    """The transactions of one table that stand in the log behind a position."""

    def __init__(self, log: Log, table: Relation, after: Position) -> None:
        self._log = log
        self._table = table
        self._upto = after
        self._lsns: NDArray[np.uint64] = np.empty(0, np.uint64)
        self._xids: NDArray[np.uint32] = np.empty(0, np.uint32)

    def first(self, visibility: Visibility, upto: Position) -> Lsn | None:
        """The commit of the first one up to a position that is not seen; None if all are."""
        lsns, xids = [self._lsns], [self._xids]
        for group in table_changes(self._log, self._table, self._upto, upto):
            hidden = ~visibility.sees(group.xid)
            lsns.append(group.lsn[hidden])
            xids.append(group.xid[hidden])
        self._upto = upto
        found, first = np.unique(np.concatenate(lsns), return_index=True)
        numbers = np.concatenate(xids)[first]
        hidden = ~visibility.sees(numbers)
        self._lsns, self._xids = found[hidden], numbers[hidden]
        return Lsn(int(self._lsns[0])) if len(self._lsns) else None
