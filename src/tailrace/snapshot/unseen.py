"""Transactions in the log that a snapshot does not see.

Commits become visible in another order than they are in the log, so a change that stands in the log
before a snapshot may be newer than the snapshot's rows. The log is read once, also for a series of
snapshots: what a snapshot sees, every later snapshot sees too, so few transactions are remembered.
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


class UnseenTransactions:
    """The transactions of one table that are in the log after a position."""

    def __init__(self, log: Log, table: Relation, after: Position) -> None:
        self._log = log
        self._table = table
        self._upto = after
        self._lsns: NDArray[np.uint64] = np.empty(0, np.uint64)
        self._xids: NDArray[np.uint32] = np.empty(0, np.uint32)

    def first(self, visibility: Visibility, upto: Position) -> Lsn | None:
        """The LSN of the first commit up to a position that is not seen; None if all are seen.

        Every call takes a snapshot that is not older than the last one.
        """
        lsns, xids = [self._lsns], [self._xids]
        for group in table_changes(self._log, self._table, self._upto, upto):
            hidden = ~visibility.sees(group.xid)
            lsns.append(group.lsn[hidden])
            xids.append(group.xid[hidden])
        self._upto = upto
        commits, first = np.unique(np.concatenate(lsns), return_index=True)
        commit_xids = np.concatenate(xids)[first]
        hidden = ~visibility.sees(commit_xids)
        self._lsns, self._xids = commits[hidden], commit_xids[hidden]
        return Lsn(int(self._lsns[0])) if len(self._lsns) else None
