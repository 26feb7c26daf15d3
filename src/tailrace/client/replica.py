"""A snapshot of a table, then exactly the changes that are not in it.

Commits become visible in another order than they are in the stream. So the transaction of a change
decides whether the snapshot contains it, not its position: changes of transactions that the
snapshot sees are skipped, all others are delivered, also those that were in the stream before the
snapshot was taken. From the snapshot's own LSN on, the snapshot contains nothing, whatever the
transaction id: transaction ids wrap around after four billion.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import orjson

from tailrace.backoff import Backoff
from tailrace.change import Op
from tailrace.client.change import Change
from tailrace.client.follow import ChangeDecoder
from tailrace.client.identity import StreamIdentity
from tailrace.client.iteration import Iteration
from tailrace.client.readers.durable import DurableReader
from tailrace.client.readers.ordered import OrderedReader
from tailrace.client.readers.reader import Start
from tailrace.client.snapshots.snapshot import Snapshot
from tailrace.errors import (
    ConfigError,
    MalformedError,
    PositionLostError,
    SinkUnreachableError,
)
from tailrace.position import Lsn
from tailrace.visibility import Visibility

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from tailrace.client.access import Access
    from tailrace.client.names import Table
    from tailrace.client.readers.reader import Reader
    from tailrace.client.snapshots.messages import Meta

_CHECK_S = 1.0
"""A sink records a new history more than a second before it publishes its first message."""
_CLOCK_SKEW = timedelta(seconds=30)
"""How far the clocks of PostgreSQL and NATS may differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The position of a replica. Store it in the same transaction as the replica's data."""

    table: str
    snapshot_id: str
    lsn: str
    visibility: str
    since: str | None
    stream: str
    """When the stream was created. A stream that is created again has other sequences."""
    sequence: int
    """The last message that was delivered; 0 before the first.

    With a durable name it stays 0: JetStream keeps the acknowledgements."""
    pipeline: str = ""
    """The pipeline that delivers the table, SLOT.PIPELINE; empty if the snapshot has no name."""
    history: str = ""
    """The history that the pipeline delivered before the snapshot; empty if it had not begun."""

    @classmethod
    def begun(cls, table: Table | str, meta: Meta, identity: StreamIdentity) -> Self:
        """The state directly after a snapshot; `identity` is that of the stream before it."""
        return cls(
            table=str(table),
            snapshot_id=meta.snapshot_id,
            lsn=str(meta.lsn),
            visibility=str(meta.visibility),
            since=meta.since.isoformat() if meta.since else None,
            stream=identity.created,
            sequence=0,
            pipeline=meta.pipeline,
            history=identity.history(meta.pipeline),
        )

    def dump(self) -> str:
        """The state as JSON text."""
        return orjson.dumps(asdict(self)).decode()

    @classmethod
    def load(cls, text: str | bytes) -> Self:
        """Read the text that `dump` wrote."""
        try:
            return cls(**orjson.loads(text))
        except (TypeError, ValueError) as error:
            raise MalformedError(f"the state of a replica is invalid: {error}") from error


class Replica(Iteration[tuple[Change, State | None], Change]):
    """Rows of a snapshot as `Op.READ`, then changes. It does not end.

    `state` is None until the last row of the snapshot is delivered. From then on it is the position
    after the last delivered event.
    """

    def __init__(
        self, access: Access, table: Table, *, durable: str | None, state: State | None
    ) -> None:
        if state is not None and state.table != str(table):
            raise ConfigError(f"the state belongs to table {state.table}, not to {table}")
        super().__init__(access)
        self._table = table
        self._durable = durable
        self.state = state
        self.meta: Meta | None = None

    def _deliver(self, item: tuple[Change, State | None]) -> Change:
        change, self.state = item
        return change

    async def _batches(self) -> AsyncGenerator[list[tuple[Change, State | None]]]:
        state = self.state
        if state is None:
            snapshot = Snapshot(self._access, self._table)
            state = await self._take_snapshot(snapshot)
            async with contextlib.aclosing(self._rows(snapshot, state)) as batches:
                async for batch in batches:
                    yield batch
            if self.state is None:
                # The table is empty: there was no last row.
                self.state = state
        async with contextlib.aclosing(self._changes(state)) as batches:
            async for batch in batches:
                yield batch

    async def _take_snapshot(self, snapshot: Snapshot) -> State:
        # Before the request: without the stream, no changes could follow the snapshot.
        info = await self._access.connection.stream_info(self._access.stream)
        self.meta = meta = await snapshot.complete()
        state = State.begun(self._table, meta, StreamIdentity(info))
        if self._durable is not None:
            # Changes that were acknowledged after another snapshot may be missing in this one.
            reader = self._durable_reader(await _start(self._access, state))
            await reader.delete()
            await _check_retained(self._access, state)
            await reader.open()
            await reader.close()
        return state

    async def _rows(
        self, snapshot: Snapshot, state: State
    ) -> AsyncGenerator[list[tuple[Change, State | None]]]:
        meta = self.meta
        assert meta is not None
        count = 0
        async for rows in snapshot.chunks(meta):
            reads = [
                _read(self._table, meta, row, number) for number, row in enumerate(rows, count + 1)
            ]
            count += len(rows)
            after_last = state if count == meta.row_count else None
            yield [*((read, None) for read in reads[:-1]), (reads[-1], after_last)]

    async def _changes(self, state: State) -> AsyncGenerator[list[tuple[Change, State | None]]]:
        reader = await self._open_reader(state)
        decoder = ChangeDecoder(self._access, self._table)
        lsn, visibility = Lsn.parse(state.lsn), Visibility.parse(state.visibility)
        checked_at = time.monotonic()
        try:
            while True:
                batch: list[tuple[Change, State | None]] = []
                messages = await reader.next()
                if messages and time.monotonic() - checked_at >= _CHECK_S:
                    await self._check_history(state)
                    checked_at = time.monotonic()
                changes = [await decoder.decode(message) for message in messages]
                skips = in_snapshot(changes, lsn, visibility)
                for message, change, skip in zip(messages, changes, skips, strict=True):
                    if skip or not decoder.is_first_copy(change, message):
                        await change.ack()
                        continue
                    if self._durable is None:
                        state = replace(state, sequence=message.sequence)
                    batch.append((change, state))
                yield batch
        finally:
            await reader.close()

    async def _check_history(self, state: State) -> None:
        """Raise if the stream has the changes of another history by now."""
        backoff = Backoff(first_s=0.1, max_s=2.0)
        while True:
            try:
                return await _check_same_stream(self._access, state)
            except SinkUnreachableError:
                await asyncio.sleep(backoff.next_s())

    async def _open_reader(self, state: State) -> Reader:
        if self._durable is None:
            return await open_reader(self._access, self._table, state)
        await _check_same_stream(self._access, state)
        durable = self._durable_reader(Start())
        if not await durable.exists():
            raise PositionLostError(
                f"there is no consumer {self._durable!r} in stream {self._access.stream}",
                hint="Its acknowledgements are lost. Start again without a state.",
            )
        await durable.open()
        return durable

    def _durable_reader(self, start: Start) -> DurableReader:
        """The reader of the durable name. An existing consumer goes on, whatever the start."""
        assert self._durable is not None
        return DurableReader(
            self._access.connection, self._access.stream, self._access.subject(self._table),
            start, name=self._durable, ack_wait_s=self._access.ack_wait_s,
        )  # fmt: skip


async def open_reader(access: Access, table: Table, state: State) -> OrderedReader:
    """A reader of a table's messages after a state. Raises if some of them may be lost."""
    await _check_same_stream(access, state)
    if not state.sequence:
        await _check_retained(access, state)
    subject = access.subject(table)
    start = await _start(access, state)
    reader = OrderedReader(access.connection, access.stream, subject, start=start)
    await reader.open()
    return reader


async def _check_same_stream(access: Access, state: State) -> None:
    StreamIdentity(await access.connection.stream_info(access.stream)).check(state)


async def _check_retained(access: Access, state: State) -> None:
    """Raise if retention may have removed changes that the snapshot does not contain."""
    if state.since is None or state.sequence:
        return
    info = await access.connection.stream_info(access.stream)
    if not retains_since(info, datetime.fromisoformat(state.since)):
        raise PositionLostError(
            f"stream {access.stream} no longer has all changes since {state.since}",
            hint="Raise the retention of the stream: it must cover the longest transaction and the "
            "snapshot after it.",
        )


async def _start(access: Access, state: State) -> Start:
    """Where the changes after a state begin: never at a message of an earlier history."""
    if state.sequence:
        return Start(sequence=state.sequence + 1)
    start = Start()
    if state.since is not None:
        start = Start(time=datetime.fromisoformat(state.since) - _CLOCK_SKEW)
    connection, stream = access.connection, access.stream
    earlier = StreamIdentity(await connection.stream_info(stream)).earlier(state.pipeline)
    if not earlier:
        return start
    first = await connection.message(stream, earlier + 1)
    if first is not None and start.time is not None and first.time < start.time:
        return start
    return Start(sequence=earlier + 1)


def _read(table: Table, meta: Meta, row: dict[str, Any], number: int) -> Change:
    return Change(
        op=Op.READ,
        table=table,
        data=row,
        lsn=meta.lsn,
        xid=None,
        id=f"{meta.snapshot_id}-{number}",
        timestamp=meta.timestamp,
    )


def in_snapshot(changes: list[Change], lsn: Lsn, visibility: Visibility) -> list[bool]:
    """Which changes the snapshot contains."""
    # Once all changes are newer than the snapshot, no arrays are needed.
    if not any(change.lsn < lsn for change in changes):
        return [False] * len(changes)
    before = np.array([change.lsn < lsn for change in changes])
    # A row of a backfill has no transaction: its values were read before the snapshot.
    reads = np.array([change.op is Op.READ for change in changes])
    xids = np.array([change.xid or 0 for change in changes], np.int64).astype(np.uint32)
    contained: list[bool] = (before & (reads | visibility.sees(xids))).tolist()
    return contained


def retains_since(info: dict[str, Any], since: datetime) -> bool:
    """Whether a stream still has every message that it stored since a time.

    JetStream removes messages that are too old, and the oldest ones of a full stream. A stream that
    has removed messages because it was full is still full, unless messages were purged by hand.
    Ages are by the clock of the server: the clock of this machine may be hours behind.
    """
    state, limits = info["state"], info["config"]
    # Nothing was ever removed.
    if state["first_seq"] <= 1:
        return True
    if state["messages"] and datetime.fromisoformat(state["first_ts"]) <= since:
        return True
    max_age = timedelta(microseconds=limits.get("max_age", 0) / 1000)
    too_old = bool(max_age) and since < _server_time(info) - max_age
    max_messages = 0 < limits.get("max_msgs", -1) <= state["messages"]
    # 90 %: JetStream removes whole messages, so a full stream is somewhat below its limit.
    max_bytes = 0 < limits.get("max_bytes", -1) * 0.9 <= state["bytes"]
    return not (too_old or max_messages or max_bytes)


def _server_time(info: dict[str, Any]) -> datetime:
    """When the server described a stream; servers before 2.10 do not say."""
    return datetime.fromisoformat(info["ts"]) if "ts" in info else datetime.now(UTC)
