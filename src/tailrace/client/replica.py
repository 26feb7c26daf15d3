"""A snapshot of a table, and then exactly the changes that are not in it.

Commits stand in the stream in another order than they become visible in. So it is not a position
that tells whether a change is in the snapshot, but its transaction: changes of transactions that
the snapshot sees are left out, all others are handed on, also those that are older in the stream
than the snapshot is. Only from the snapshot's own LSN on is nothing in it, whatever its number:
transaction numbers repeat after some billions.
"""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import orjson

from tailrace.change import Op
from tailrace.client.change import Change
from tailrace.client.follow import Typed
from tailrace.client.iteration import Iteration
from tailrace.client.readers import Durable, Ordered, Start
from tailrace.client.snapshot import Snapshot
from tailrace.errors import ConfigError, MalformedError, PositionLostError
from tailrace.position import Lsn
from tailrace.visibility import Visibility

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from tailrace.client.access import Access
    from tailrace.client.names import Table
    from tailrace.client.readers import Reader
    from tailrace.client.snapshot import Meta

_MARGIN = timedelta(seconds=30)
"""How far the clocks of PostgreSQL and NATS may be apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Where a replica is: small, and to be kept in the same transaction as its data."""

    table: str
    snapshot_id: str
    lsn: str
    visibility: str
    since: str | None
    stream: str
    """When the stream was created: another stream counts its messages anew."""
    sequence: int
    """The last message that was handed on; 0 before the first.

    With a durable name it stays 0: there the acknowledgements count."""

    @classmethod
    def begun(cls, table: Table | str, meta: Meta, stream: str) -> Self:
        """Right behind a snapshot, in a stream that was created at this time."""
        return cls(
            table=str(table),
            snapshot_id=meta.snapshot_id,
            lsn=str(meta.lsn),
            visibility=str(meta.visibility),
            since=meta.since.isoformat() if meta.since else None,
            stream=stream,
            sequence=0,
        )

    def dump(self) -> str:
        """As text."""
        return orjson.dumps(asdict(self)).decode()

    @classmethod
    def load(cls, text: str | bytes) -> Self:
        """Read what `dump` wrote."""
        try:
            return cls(**orjson.loads(text))
        except (TypeError, ValueError) as error:
            raise MalformedError(f"a replica's state is not understood: {error}") from error


class Replica(Iteration[tuple[Change, State | None], Change]):
    """Rows of a snapshot as `Op.READ`, then changes. It does not end.

    `state` is None until the last row of the snapshot is handed on. From then on it says where the
    replica is, the event that was handed on last included.
    """

    def __init__(
        self, access: Access, table: Table, *, durable: str | None, state: State | None
    ) -> None:
        if state is not None and state.table != str(table):
            raise ConfigError(f"the state is of {state.table}, not of {table}")
        super().__init__(access)
        self._table = table
        self._durable = durable
        self.state = state
        self.meta: Meta | None = None

    def _handed(self, item: tuple[Change, State | None]) -> Change:
        change, self.state = item
        return change

    async def _batches(self) -> AsyncGenerator[list[tuple[Change, State | None]]]:
        begun = self.state
        if begun is None:
            snapshot = Snapshot(self._access, self._table)
            begun = await self._begun(snapshot)
            async with contextlib.aclosing(self._rows(snapshot, begun)) as batches:
                async for batch in batches:
                    yield batch
            if self.state is None:
                # Of an empty table no row was the last.
                self.state = begun
        async with contextlib.aclosing(self._changes(begun)) as batches:
            async for batch in batches:
                yield batch

    async def _begun(self, snapshot: Snapshot) -> State:
        # Before anything is asked for: without the stream there is nothing to go on with.
        info = await self._access.connection.stream_info(self._access.stream)
        self.meta = meta = await snapshot.complete()
        begun = State.begun(self._table, meta, info["created"])
        if self._durable is not None:
            # What was acknowledged for another snapshot may be missing in this one.
            reader = self._named(begun)
            await reader.forget()
            await _check(self._access, begun)
            await reader.open()
            await reader.close()
        return begun

    async def _rows(
        self, snapshot: Snapshot, begun: State
    ) -> AsyncGenerator[list[tuple[Change, State | None]]]:
        meta = self.meta
        assert meta is not None
        number = 0
        async for rows in snapshot.chunks(meta):
            number += len(rows)
            reads = [
                _read(self._table, meta, row, at)
                for at, row in enumerate(rows, number - len(rows) + 1)
            ]
            last = begun if number == meta.row_count else None
            yield [*((read, None) for read in reads[:-1]), (reads[-1], last)]

    async def _changes(self, state: State) -> AsyncGenerator[list[tuple[Change, State | None]]]:
        reader = await self._reader(state)
        typed = Typed(self._access, self._table)
        lsn, visibility = Lsn.parse(state.lsn), Visibility.parse(state.visibility)
        try:
            while True:
                found: list[tuple[Change, State | None]] = []
                arrivals = await reader.next()
                changes = [await typed.change(arrival) for arrival in arrivals]
                leaving = included(changes, lsn, visibility)
                for arrival, change, leave in zip(arrivals, changes, leaving, strict=True):
                    if leave or not typed.first(change, arrival):
                        await change.ack()
                        continue
                    if self._durable is None:
                        state = replace(state, sequence=arrival.sequence)
                    found.append((change, state))
                yield found
        finally:
            await reader.close()

    async def _reader(self, state: State) -> Reader:
        if self._durable is None:
            return await ordered(self._access, self._table, state)
        await _same_stream(self._access, state)
        durable = self._named(state)
        if not await durable.exists():
            raise PositionLostError(
                f"there is no consumer {self._durable!r} in stream {self._access.stream}",
                hint="Its acknowledgements went with it. Begin again without a state.",
            )
        await durable.open()
        return durable

    def _named(self, state: State) -> Durable:
        assert self._durable is not None
        return Durable(
            self._access.connection, self._access.stream, self._access.subject(self._table),
            _start(state), name=self._durable, ack_wait_s=self._access.ack_wait_s,
        )  # fmt: skip


async def ordered(access: Access, table: Table, state: State) -> Ordered:
    """The messages of a table behind a state; refuses if some of them may be gone."""
    await _same_stream(access, state)
    if not state.sequence:
        await _check(access, state)
    reader = Ordered(access.connection, access.stream, access.subject(table), start=_start(state))
    await reader.open()
    return reader


async def _same_stream(access: Access, state: State) -> None:
    info = await access.connection.stream_info(access.stream)
    if info["created"] != state.stream:
        raise PositionLostError(
            f"stream {access.stream} was created anew since the snapshot",
            hint="Begin again without a state: a new snapshot is taken.",
        )


async def _check(access: Access, state: State) -> None:
    """Refuse when the stream may have let go of changes that the snapshot does not have."""
    if state.since is None or state.sequence:
        return
    info = await access.connection.stream_info(access.stream)
    if not reaches_back(info, datetime.fromisoformat(state.since), datetime.now(UTC)):
        raise PositionLostError(
            f"stream {access.stream} no longer has all changes since {state.since}",
            hint="Let the stream keep messages for longer than a snapshot takes, and than the "
            "longest transaction before it.",
        )


def _start(state: State) -> Start:
    if state.sequence:
        return Start(sequence=state.sequence + 1)
    if state.since is None:
        return Start()
    return Start(time=datetime.fromisoformat(state.since) - _MARGIN)


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


def included(changes: list[Change], lsn: Lsn, visibility: Visibility) -> list[bool]:
    """Which changes the snapshot has."""
    if not any(change.lsn < lsn for change in changes):
        return [False] * len(changes)
    before = np.array([change.lsn < lsn for change in changes])
    # A row of a backfill has no transaction: what it says was so before the snapshot.
    reads = np.array([change.op is Op.READ for change in changes])
    xids = np.array([change.xid or 0 for change in changes], np.int64).astype(np.uint32)
    found: list[bool] = (before & (reads | visibility.sees(xids))).tolist()
    return found


def reaches_back(info: dict[str, Any], since: datetime, now: datetime) -> bool:
    """Whether a stream still has every message it got since a time.

    A message is let go of when it is too old, or when the stream is full; after the latter the
    stream still is full, unless something was deleted by hand.
    """
    state, limits = info["state"], info["config"]
    if state["first_seq"] <= 1:
        return True
    if state["messages"] and datetime.fromisoformat(state["first_ts"]) <= since:
        return True
    max_age = timedelta(microseconds=limits.get("max_age", 0) / 1000)
    aged = bool(max_age) and since < now - max_age
    crowded = 0 < limits.get("max_msgs", -1) <= state["messages"]
    heavy = 0 < limits.get("max_bytes", -1) * 0.9 <= state["bytes"]
    return not (aged or crowded or heavy)
