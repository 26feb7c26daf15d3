"""The gate: how far capture may acknowledge, if PostgreSQL waits for followers of the log.

Without followers that count, that is the durable mark. In mode `sync` it is the smaller of the
durable mark and what a quorum of followers has fsynced: what PostgreSQL forgets is then on so many
other machines.

After a takeover the gate stays shut until a quorum has an entry of the new term and the slots of
older terms are dropped. Otherwise a machine whose log ends in an older term could still win, and
followers would remove what the quorum has acknowledged (`tests/model` shows how).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tailrace.log import acknowledged
from tailrace.log.term import term_of
from tailrace.position import Lsn

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.log.format.mark import Mark
    from tailrace.log.store import Store

_READ_EVERY_S = 1.0
"""Also without an event: the kernel watches a file, which may be removed and created again."""


class Gate:
    """Reads what the leader's process says about the quorum.

    `settled` says whether no slot of an older term than `term` exists.
    """

    def __init__(
        self,
        store: Store,
        needed: int = 0,
        *,
        term: int = 0,
        settled: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._needed = needed
        self._term = term
        self._settled = settled
        self._clock = clock
        self._quorum: Mark | None = None
        self._watch = acknowledged.watch(store, needed) if needed else None
        self._read()

    @property
    def wake_fd(self) -> int | None:
        """Readable when the quorum may have moved; None if nothing is waited for or watched."""
        return None if self._watch is None else self._watch.fileno()

    def refresh(self) -> None:
        """Notice a quorum that has moved."""
        if self._watch is not None:
            overdue = self._clock() - self._read_at >= _READ_EVERY_S
            if self._watch.wait(0) or overdue:
                self._read()

    def _read(self) -> None:
        self._read_at = self._clock()
        if self._needed:
            quorum = acknowledged.read(self._store, self._needed)
            if quorum is not None and term_of(quorum.epoch) >= self._term:
                self._quorum = quorum

    @property
    def due(self) -> bool:
        """Whether the slots of older terms can be dropped now."""
        return self._needed > 0 and not self._settled and self._quorum is not None

    def settle(self) -> None:
        """The slots of older terms are dropped."""
        self._settled = True

    def limit(self, mark: Mark) -> Lsn:
        """How far PostgreSQL may forget, of a log that is durable up to a mark; 0: nothing."""
        if not self._needed:
            return mark.end_lsn
        if self._quorum is None or not self._settled:
            return Lsn(0)
        if self._quorum.place >= mark.place:
            return mark.end_lsn
        return min(self._quorum.end_lsn, mark.end_lsn)
