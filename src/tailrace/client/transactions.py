"""Changes after a snapshot, in whole transactions: for consumers that keep a copy of a table.

The stream does not mark the end of a source transaction. A transaction has ended when a change of
another commit follows, or when the stream has no more messages for the table. The second is exact
if the pipeline publishes transactions atomically (`atomic: transaction`): then all changes of one
appear at once. Without it, a pipeline in the middle of a transaction looks like one that is done.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tailrace.client.change import Change
from tailrace.client.follow import SeenChanges
from tailrace.client.iteration import PlainIteration
from tailrace.client.names import Table
from tailrace.client.payload import decode
from tailrace.client.readers.timed import TimedReader
from tailrace.client.replica import State, in_snapshot, open_reader
from tailrace.position import Lsn
from tailrace.visibility import Visibility

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from tailrace.client.access import Access
    from tailrace.client.readers.ordered import OrderedReader
    from tailrace.client.readers.reader import StreamMessage

BATCH_CHANGES = 10_000
"""Changes per batch; a batch ends with the first request that reaches this number."""
# JetStream stores the rest of an atomic batch within milliseconds, unless it was killed.
_RECHECK_S = 0.02
_BATCH_ID, _BATCH_COMMIT = "Nats-Batch-Id", "Nats-Batch-Commit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Whole transactions, in order, and the state after the last one.

    Values are as in the messages, untyped. A batch without changes has a newer state only: no
    change of the table came, and the position advanced. A consumer that stores it does not need a
    new snapshot when retention removes the messages before it.
    """

    changes: Sequence[Change]
    state: State
    pending: int
    """Messages of the table that are in the stream and not in this batch."""
    ends: bool = True
    """Whether the last transaction is complete. A very large transaction comes in several batches:
    before the last of them, neither show its changes nor store the state."""


class Transactions(PlainIteration[Batch]):
    """Batches from a state on. It does not end."""

    def __init__(self, access: Access, table: Table, state: State) -> None:
        super().__init__(access)
        self._table = table
        self._state = state
        self._lsn = Lsn.parse(state.lsn)
        self._visibility = Visibility.parse(state.visibility)
        self._seen = SeenChanges()
        self._complete: list[Change] = []
        """Changes of complete transactions."""
        self._complete_seq = 0
        """The last message of the complete transactions."""
        self._open: list[Change] = []
        """Changes of the last transaction, which may not be complete."""
        self._open_commit: Lsn | None = None
        """Commit of the open transaction, also after a part of it was delivered."""
        self._last_seq = 0
        self._incomplete: StreamMessage | None = None
        """The last message of a transaction of which a part is known to be missing."""

    async def _batches(self) -> AsyncGenerator[list[Batch]]:
        reader = await open_reader(self._access, self._table, self._state)
        timed = TimedReader(reader)
        try:
            while True:
                messages = await timed.next(_RECHECK_S if self._incomplete is not None else None)
                if messages:
                    batch = await self._take(messages)
                elif self._incomplete is not None:
                    batch = await self._recheck(self._incomplete)
                else:
                    batch = self._on_idle(reader)
                yield [] if batch is None else [batch]
        finally:
            await timed.close()

    async def _take(self, messages: list[StreamMessage]) -> Batch | None:
        """Sort messages into transactions; the batch that they complete, if any.

        | after these messages                             | result                               |
        |--------------------------------------------------|--------------------------------------|
        | stream has no more, last transaction complete    | all changes                          |
        | stream has no more, last transaction incomplete  | the transactions before it           |
        | more pending, fewer than BATCH_CHANGES           | nothing yet                          |
        | more pending, enough complete transactions       | these; the open one waits            |
        | more pending, one transaction of this size       | its changes so far, with ends=False  |
        """
        await self._add(messages)
        pending = messages[-1].pending
        self._incomplete = None
        if not pending:
            if not await self._transaction_ended(messages[-1]):
                self._incomplete = messages[-1]
                return self._batch(len(self._open))
            self._complete_transaction()
        elif len(self._complete) + len(self._open) < BATCH_CHANGES:
            return None
        elif not self._complete:
            changes, self._open = self._open, []
            return Batch(changes=changes, state=self._state, pending=pending, ends=False)
        return self._batch(pending + len(self._open))

    async def _add(self, messages: list[StreamMessage]) -> None:
        changes, skips = await self._decode(messages)
        for message, change, skip in zip(messages, changes, skips, strict=True):
            if self._open_commit is not None and self._open_commit != change.lsn:
                self._complete_transaction()
            if not skip and self._seen.is_first_copy(change, message):
                self._open.append(change)
                self._open_commit = change.lsn
            self._last_seq = message.sequence
            if self._open_commit is None:
                # In the snapshot, or a second copy: the state may advance over it.
                self._complete_seq = self._last_seq

    async def _decode(self, messages: list[StreamMessage]) -> tuple[list[Change], list[bool]]:
        """The messages as changes, and which of them the snapshot contains."""
        encoding = self._access.encoding
        changes = [Change.of(decode(message.data, encoding)) for message in messages]
        return changes, in_snapshot(changes, self._lsn, self._visibility)

    def _origin(self, data: bytes) -> tuple[Lsn, Table]:
        """The commit and the table of a message of any table."""
        message = decode(data, self._access.encoding)
        table = Table(str(message.get("schema")), str(message.get("table")))
        return Lsn.parse(str(message.get("lsn"))), table

    async def _transaction_ended(self, last: StreamMessage) -> bool:
        """Whether the open transaction is complete, when the stream has no more for the table.

        JetStream delivers the first messages of an atomic batch while it still stores the others.
        If it is killed at that point, the pipeline publishes the others in a batch of their own. So
        the commit message of the batch, of whatever table, must be in the stream as well.
        """
        if self._open_commit is None or _BATCH_ID not in last.headers:
            return True
        committed, sequence = _BATCH_COMMIT in last.headers, last.sequence
        while not committed:
            message = await self._access.connection.message(self._access.stream, sequence + 1)
            if message is None:
                return False
            commit, table = self._origin(message.data)
            if commit != self._open_commit:
                return True
            if table == self._table:
                # The consumer is about to deliver it.
                return False
            committed = _BATCH_ID not in message.headers or _BATCH_COMMIT in message.headers
            sequence = message.sequence
        return True

    async def _recheck(self, last: StreamMessage) -> Batch | None:
        """Look again whether an incomplete transaction is complete by now."""
        if not await self._transaction_ended(last):
            return None
        self._incomplete = None
        self._complete_transaction()
        return self._batch(0)

    def _complete_transaction(self) -> None:
        self._complete += self._open
        self._open, self._complete_seq, self._open_commit = [], self._last_seq, None

    def _batch(self, pending: int) -> Batch | None:
        if self._complete_seq <= self._state.sequence:
            return None
        changes, self._complete = self._complete, []
        self._state = replace(self._state, sequence=self._complete_seq)
        return Batch(changes=changes, state=self._state, pending=pending)

    def _on_idle(self, reader: OrderedReader) -> Batch | None:
        """No message of the table came for a while: the state may advance."""
        self._last_seq = max(self._last_seq, reader.last_sequence)
        self._complete_transaction()
        return self._batch(0)
