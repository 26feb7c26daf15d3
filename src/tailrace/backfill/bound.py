"""Where in the log the changes begin that a page of a backfill may not see.

Commits become visible in another order than they are in the log. A change that stands in the log
before the page's LSN can therefore be newer than the page's rows. The bound is a position in the
log after which every such change stands; `tailrace.backfill.handover` reads the log from there.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from tailrace.errors import PositionLostError
from tailrace.log.reader import AtLsn, AtTime, Earliest
from tailrace.snapshot.unseen import UnseenTransactions
from tailrace.wire.pgtime import PgTime

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.backfill.page import PageSnapshot
    from tailrace.log.reader import Log
    from tailrace.position import Position

_CLOCK_SKEW = timedelta(seconds=30)
"""How far a commit's timestamp may be before the start that PostgreSQL reports for its transaction:
the two are read at different times, and clocks can be set back."""


class PageBound:
    """Finds the bound of one page after another; it reads the log once along the way.

    `started` is what the pipeline had delivered when the backfill began. `report` gets the reason
    whenever there is no bound.
    """

    def __init__(self, log: Log, started: Position, report: Callable[[str], None]) -> None:
        self._log = log
        self._started = started
        self._report = report
        self._unseen: UnseenTransactions | None = None

    def position(self, snapshot: PageSnapshot) -> Position | None:
        """The position after which every change stands that the snapshot does not see.

        None if the page must be read again later:

        - the log begins after the oldest transaction that may still commit, or
        - a commit from before the backfill is in the log and not yet visible, for example because
          it waits for a synchronous standby. The pipeline counts it as delivered, and the page
          does not contain it: the change would be lost.
        """
        self._unseen = self._unseen or self._open(snapshot)
        position = None if self._unseen is None else self._find(self._unseen, snapshot)
        if position is None:
            self._unseen = None
        return position

    def _open(self, snapshot: PageSnapshot) -> UnseenTransactions | None:
        since = snapshot.since
        start = Earliest() if since is None else AtTime(PgTime.of(since - _CLOCK_SKEW))
        try:
            return UnseenTransactions(self._log, snapshot.table.relation, self._log.resolve(start))
        except PositionLostError:
            self._report("an open transaction is older than the log")
            return None

    def _find(self, unseen: UnseenTransactions, snapshot: PageSnapshot) -> Position | None:
        end = self._log.end().position
        first = unseen.first(snapshot.visibility, end)
        if first is None:
            return end
        if first <= self._started.lsn:
            self._report(f"the commit at {first} is not visible yet")
            return None
        return self._log.resolve(AtLsn(first))
