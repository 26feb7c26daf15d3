"""Changes behind a snapshot, in whole transactions: for those who keep a copy of a table.

Where a transaction of the source ends is not in the stream. It has ended when a change of another
commit follows, or when the stream has nothing more for us. The second is exact if the pipeline
publishes transactions atomically (`atomic: transaction`): then all changes of one appear at once.
Without, a pipeline that is in the middle of a transaction looks the same as one that is done.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tailrace.client.change import Change
from tailrace.client.connection import PATIENCE_S
from tailrace.client.follow import Seen
from tailrace.client.iteration import Iteration
from tailrace.client.payload import decoded
from tailrace.client.replica import State, included, ordered
from tailrace.position import Lsn
from tailrace.sinks.nats.protocol import header_value
from tailrace.visibility import Visibility

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from tailrace.client.access import Access
    from tailrace.client.names import Table
    from tailrace.client.readers import Arrival, Ordered

_BATCH, _COMMIT = "Nats-Batch-Id", "Nats-Batch-Commit"
_PAUSE_S = 0.002
_ENOUGH = 10_000
"""Changes in a batch, or few more."""


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

    def _handed(self, item: Batch) -> Batch:
        return item

    async def _batches(self) -> AsyncGenerator[list[Batch]]:
        reader = await ordered(self._access, self._table, self._state)
        try:
            while True:
                arrivals = await reader.next()
                if arrivals and await self._goes_on(arrivals[-1]):
                    arrivals[-1] = replace(arrivals[-1], pending=1)
                batch = self._take(arrivals) if arrivals else self._silence(reader)
                yield [] if batch is None else [batch]
        finally:
            await reader.close()

    async def _goes_on(self, last: Arrival) -> bool:
        """Whether more of an atomic batch comes, though the server knew of nothing.

        A server hands out the first messages of a batch while it is still storing the others.
        """
        batch = last.headers.get(_BATCH)
        if last.pending or batch is None or _COMMIT in last.headers:
            return False
        connection, stream = self._access.connection, self._access.stream
        deadline = time.monotonic() + PATIENCE_S
        while not await self._stored(batch, last.sequence) and time.monotonic() < deadline:
            await asyncio.sleep(_PAUSE_S)
        subject = self._access.subject(self._table)
        return await connection.message(stream, last.sequence + 1, subject=subject) is not None

    async def _stored(self, batch: str, sequence: int) -> bool:
        """Whether all of a batch is in the stream: its messages stand side by side."""
        connection, stream = self._access.connection, self._access.stream
        end = (await connection.stream_info(stream))["state"]["last_seq"]
        if end == sequence:
            return False
        found = await connection.message(stream, end)
        if found is None:
            return True
        name = header_value(found[1], _BATCH.encode())
        return name != batch.encode() or header_value(found[1], _COMMIT.encode()) is not None

    def _take(self, arrivals: list[Arrival]) -> Batch | None:
        """What is whole with these messages, if it is enough or all there is; the rest is held."""
        changes = [Change.of(decoded(each.data, self._access.encoding)) for each in arrivals]
        leaving = included(changes, self._lsn, self._visibility)
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
        if not pending:
            self._settle()
        elif len(self._whole) + len(self._held) < _ENOUGH:
            return None
        elif not self._whole:
            # One large transaction: handed on in parts.
            held, self._held = self._held, []
            return Batch(changes=held, state=self._state, pending=pending, ends=False)
        return self._batch(pending + len(self._held))

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
        """Nothing came for a while: what is held is whole, and the place may move on."""
        self._last = max(self._last, reader.place)
        self._settle()
        return self._batch(0)
