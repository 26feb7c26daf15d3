"""Changes behind a snapshot, in whole transactions: for those who keep a copy of a table.

Where a transaction of the source ends is not in the stream. It has ended when a change of another
commit follows, or when the stream has nothing more for us. The second is exact if the pipeline
publishes transactions atomically (`atomic: transaction`): then all changes of one appear at once.
Without, a pipeline that is in the middle of a transaction looks the same as one that is done.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tailrace.client.change import Change
from tailrace.client.chunks import Patient
from tailrace.client.follow import Seen
from tailrace.client.iteration import Iteration
from tailrace.client.names import Table
from tailrace.client.payload import decoded
from tailrace.client.replica import State, included, ordered
from tailrace.position import Lsn
from tailrace.visibility import Visibility

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from tailrace.client.access import Access
    from tailrace.client.readers import Arrival, Ordered

_ENOUGH = 10_000
"""Changes in a batch, or few more."""
_TORN_S = 0.02
_BATCH, _LAST = "Nats-Batch-Id", "Nats-Batch-Commit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Whole transactions, one after another, and the place behind the last one.

    Values are as the messages have them. No changes, but a state: nothing has happened to the
    table, and the place has moved on; kept, it spares a snapshot when the stream lets go of what
    is before it.
    """

    changes: Sequence[Change]
    state: State
    pending: int
    """Messages of the table that are in the stream already and not in here."""
    ends: bool = True
    """Whether its last transaction is whole. Of one that is very large the rest is to come: what
    is done with the changes must not be seen before, nor the state be kept."""


class Transactions(Iteration[Batch, Batch]):
    """Batches from a state on. It does not end."""

    def __init__(self, access: Access, table: Table, state: State) -> None:
        super().__init__(access)
        self._table = table
        self._state = state
        self._lsn = Lsn.parse(state.lsn)
        self._visibility = Visibility.parse(state.visibility)
        self._seen = Seen()
        self._whole: list[Change] = []
        self._end = 0
        """The last message of what is whole."""
        self._held: list[Change] = []
        self._commit: Lsn | None = None
        """Of the transaction that is held, or was handed on in part."""
        self._last = 0
        self._torn: Arrival | None = None
        """The last message of a transaction of which a part is missing."""

    def _handed(self, item: Batch) -> Batch:
        return item

    async def _batches(self) -> AsyncGenerator[list[Batch]]:
        reader = await ordered(self._access, self._table, self._state)
        arrivals = Patient(reader)
        try:
            while True:
                found = await arrivals.next(_TORN_S if self._torn is not None else None)
                if found:
                    batch = await self._take(found)
                elif self._torn is not None:
                    batch = await self._mended(self._torn)
                else:
                    batch = self._silence(reader)
                yield [] if batch is None else [batch]
        finally:
            await arrivals.close()

    async def _take(self, arrivals: list[Arrival]) -> Batch | None:
        """What is whole with these messages, if it is enough or all there is; the rest is held."""
        changes, leaving = await self._read(arrivals)
        for arrival, change, leave in zip(arrivals, changes, leaving, strict=True):
            if self._commit is not None and self._commit != change.lsn:
                self._settle()
            if not leave and self._seen.first(change, arrival):
                self._held.append(change)
                self._commit = change.lsn
            self._last = arrival.sequence
            if self._commit is None:
                # In the snapshot, or here already: nothing is missed by being behind it.
                self._end = self._last
        pending = arrivals[-1].pending
        self._torn = None
        if not pending:
            if not await self._ended(arrivals[-1]):
                self._torn = arrivals[-1]
                return self._batch(len(self._held))
            self._settle()
        elif len(self._whole) + len(self._held) < _ENOUGH:
            return None
        elif not self._whole:
            # One large transaction: handed on in parts.
            held, self._held = self._held, []
            return Batch(changes=held, state=self._state, pending=pending, ends=False)
        return self._batch(pending + len(self._held))

    async def _read(self, arrivals: list[Arrival]) -> tuple[list[Change], list[bool]]:
        """The messages as changes, and which of them are in the snapshot."""
        changes = [Change.of(decoded(each.data, self._access.encoding)) for each in arrivals]
        return changes, included(changes, self._lsn, self._visibility)

    def _origin(self, data: bytes) -> tuple[Lsn, Table]:
        """The commit and the table of a message, whatever table that is."""
        message = decoded(data, self._access.encoding)
        table = Table(str(message.get("schema")), str(message.get("table")))
        return Lsn.parse(str(message.get("lsn"))), table

    async def _ended(self, arrival: Arrival) -> bool:
        """Whether the last transaction is whole, now that the server knows of nothing more for us.

        It hands out the first messages of an atomic batch while it is still storing the others, and
        if it is killed then, the others come with the pipeline's next attempt, in a batch of their
        own. So the batch's last message, whatever table it is of, has to be there as well.
        """
        if self._commit is None or _BATCH not in arrival.headers:
            return True
        last, sequence = _LAST in arrival.headers, arrival.sequence
        while not last:
            found = await self._access.connection.message(self._access.stream, sequence + 1)
            if found is None:
                return False
            commit, table = self._origin(found.data)
            if commit != self._commit:
                return True
            if table == self._table:
                # On its way to us.
                return False
            last = _BATCH not in found.headers or _LAST in found.headers
            sequence = found.sequence
        return True

    async def _mended(self, torn: Arrival) -> Batch | None:
        """Look once more at a transaction of which a part was missing."""
        if not await self._ended(torn):
            return None
        self._torn = None
        self._settle()
        return self._batch(0)

    def _settle(self) -> None:
        """What is held is whole."""
        self._whole += self._held
        self._held, self._end, self._commit = [], self._last, None

    def _batch(self, pending: int) -> Batch | None:
        if self._end <= self._state.sequence:
            return None
        whole, self._whole = self._whole, []
        self._state = replace(self._state, sequence=self._end)
        return Batch(changes=whole, state=self._state, pending=pending)

    def _silence(self, reader: Ordered) -> Batch | None:
        """Nothing came for a while: the place may move on."""
        self._last = max(self._last, reader.place)
        self._settle()
        return self._batch(0)
