"""One table from a source into a target: a snapshot, then every change, until it is cancelled.

    bootstrap   load the chunks of a snapshot as they arrive, in one transaction of the target
    follow      apply whole transactions of the source, each with its position in the stream

After a crash at any point, the target has the table as it was at one point in time of the source,
and the position that belongs to it. When the position is lost, or the table was altered in a way
that has no event, the mirror loads a new snapshot.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from tailrace.backoff import Backoff
from tailrace.change import Op
from tailrace.client import State
from tailrace.client.names import Table
from tailrace.errors import PositionLostError, SinkError, TailraceError
from tailrace.mirror.net import NetChanges
from tailrace.mirror.schema import TableChanged, TableSchemas, matching
from tailrace.mirror.status import Phase, Status
from tailrace.mirror.targets.values import transpose
from tailrace.mirror.work_queue import WorkQueue, short_switch_interval

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tailrace.client import Batch, Change, Meta
    from tailrace.mirror.layout import Layout
    from tailrace.mirror.sources.source import MirrorSource, RowChunk
    from tailrace.mirror.targets.target import Target

T = TypeVar("T")
P = ParamSpec("P")

_CHECK_S = 5.0
_CANCEL_S = 0.5
_START_S = 10.0
"""How long after the start a pipeline may be unreachable: it may be starting, too."""


async def cancel_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks until they have ended.

    One cancellation may not be enough: `asyncio.wait_for` of Python 3.11, which nats-py uses, loses
    a cancellation that arrives together with the result.
    """
    running = {*tasks}
    while running:
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=_CANCEL_S)


class Mirror:
    """Keeps one table of a target current, until it is cancelled.

    Without `key` the schema document names the key; `()` means that the table has none. `fresh`
    starts with a new snapshot, whatever the target has.
    """

    def __init__(
        self,
        source: MirrorSource,
        table: str,
        target: Target,
        *,
        key: Sequence[str] | None = None,
        fresh: bool = False,
        status: Status | None = None,
        backoff: Backoff | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.status = status or Status(table=table)
        self._source = source
        self._table = table
        self._target = target
        self._schemas = TableSchemas(source, table, key, clock=clock)
        self._fresh = fresh
        self._clock = clock
        self._backoff = backoff or Backoff(first_s=0.5, max_s=10.0, clock=clock)
        self._has_begun = False
        self._layout: Layout | None = None
        self._uncommitted = 0
        # The calls of a target block. One thread, because a transaction belongs to its thread.
        self._thread = ThreadPoolExecutor(1, f"mirror {table}")

    async def run(self) -> None:
        """Mirror the table. Raises errors that a retry cannot fix, and errors at the start."""
        started_at = self._clock()
        try:
            while True:
                changes = self.status.changes
                try:
                    await self._attempt()
                except TailraceError as error:
                    if not self._may_retry(error, started_at):
                        raise
                    if self.status.changes != changes:
                        self._backoff.reset()
                    delay_s = self._backoff.next_s()
                    text = f"{error.code}: {error}; retrying in {delay_s:.1f} s"
                    self.status.report(text, Phase.WAITING)
                    await asyncio.sleep(delay_s)
        finally:
            await self._call(self._target.close)
            self._thread.shutdown()

    def _may_retry(self, error: TailraceError, started_at: float) -> bool:
        """An error at the start is most often a wrong address, so it is raised.

        | error          | before the first row or change arrives       | after it |
        |----------------|----------------------------------------------|----------|
        | not transient  | raise                                        | raise    |
        | of the sink    | retry for `_START_S`: it may be starting     | retry    |
        | other          | raise                                        | retry    |
        """
        if not error.transient:
            return False
        starting = isinstance(error, SinkError) and self._clock() - started_at < _START_S
        return self._has_begun or starting

    async def _attempt(self) -> None:
        """Resume from the state of the target. Ends with an error only."""
        stored = await self._call(self._target.open)
        state = None
        if stored is not None and not self._fresh:
            state, self._layout = State.load(stored.state), stored.layout
        while True:
            changes, snapshots = self.status.changes, self.status.snapshots
            if state is None:
                with short_switch_interval():
                    state = await self._bootstrap()
                self._fresh = False
            try:
                await self._follow(state)
            except PositionLostError as error:
                self.status.report(f"position lost, taking a new snapshot: {error}")
            except TableChanged as reason:
                self.status.report(f"{reason}: taking a new snapshot")
            await self._call(self._target.rollback)
            state = None
            if self.status.snapshots > snapshots and self.status.changes == changes:
                # The snapshot did not help, for example before a pipeline is reset after a restore.
                await asyncio.sleep(self._backoff.next_s())

    async def _bootstrap(self) -> State:
        """Load the rows of a snapshot while the service still writes it."""
        status = self.status
        status.rows = 0
        status.report("requesting a snapshot", Phase.BOOTSTRAP)
        started_at = self._clock()
        # Before the snapshot: a stream that is created again meanwhile has lost changes.
        identity = await self._source.stream_identity()
        meta = await self._load_snapshot()
        identity = identity or await self._source.stream_identity()
        if identity is None:
            raise PositionLostError("the stream of changes is missing")
        state = State.begun(str(Table.parse(self._table)), meta, identity)
        await self._call(self._target.finish, state.dump())
        status.snapshots += 1
        status.report(f"{status.rows:,} rows loaded in {self._clock() - started_at:.1f} s")
        return state

    async def _load_snapshot(self) -> Meta:
        """Load all chunks; those of a superseded snapshot are discarded."""
        status, form = self.status, self._target.form
        loading: str | None = None
        async with (
            self._source.chunks(self._table, form=form) as chunks,
            WorkQueue(self._load) as queue,
        ):
            async for chunk in chunks:
                if chunk.snapshot_id != loading:
                    # The worker must not load an old chunk into the new table.
                    await queue.join()
                    await self._begin(chunk)
                    loading, status.rows = chunk.snapshot_id, 0
                await queue.put(await self._convert(chunk))
            await queue.join()
            meta = chunks.meta
        assert meta is not None
        if meta.snapshot_id != loading:
            # The table is empty: its snapshot has no chunks.
            await self._begin(None)
            status.rows = 0
        if status.rows != meta.row_count:
            raise PositionLostError(
                f"snapshot {meta.snapshot_id} has {meta.row_count} rows, the stream has "
                f"{status.rows}",
                hint="Retention has removed some. Raise the retention of the stream of snapshots.",
            )
        return meta

    async def _begin(self, chunk: RowChunk | None) -> None:
        names: Iterable[str] | None = None
        if chunk is not None:
            names = chunk.columns or (await self._call(chunk.rows))[0].keys()
        self._layout = await self._schemas.layout(names, before=self._layout)
        await self._call(self._target.begin, self._layout)
        self._has_begun = True

    async def _convert(self, chunk: RowChunk) -> tuple[int, Any]:
        """A chunk in the target's form, converted while the target loads the chunks before it."""
        assert self._layout is not None
        names = self._layout.names

        def convert() -> tuple[int, Any]:
            if chunk.columns is not None:
                text = chunk.plain()
                return text.count(b"\n"), (chunk.columns, text)
            rows = chunk.rows()
            return len(rows), self._target.convert(transpose(rows, names))

        return await asyncio.to_thread(convert)

    async def _load(self, converted: tuple[int, Any]) -> None:
        count, rows = converted
        await self._call(self._target.load, rows)
        self.status.rows += count

    async def _follow(self, state: State) -> None:
        """Apply the changes after a state. Ends with an error only."""
        assert self._layout is not None
        async with self._source.transactions(self._table, state) as batches:
            check_at = 0.0
            self.status.report("following", Phase.FOLLOWING)
            self._has_begun, self._uncommitted = True, 0
            while True:
                if self._clock() >= check_at:
                    await self._check(state)
                    check_at = self._clock() + _CHECK_S
                try:
                    async with asyncio.timeout(_CHECK_S):
                        batch = await anext(batches)
                except TimeoutError:
                    continue
                await self._take(batch)

    async def _check(self, state: State) -> None:
        """Look for what has no event: alterations of the table, and another history."""
        assert self._layout is not None
        await self._schemas.check(self._layout)
        identity = await self._source.stream_identity()
        if identity is not None:
            identity.check(state)

    async def _take(self, batch: Batch) -> None:
        """Apply a batch, and commit it with its state if its last transaction is complete."""
        assert self._layout is not None
        try:
            await self._apply(batch.changes)
        except TableChanged:
            raise
        except Exception:
            # Values that do not fit: the table may have been altered.
            await self._schemas.check(self._layout)
            raise
        self._uncommitted += len(batch.changes)
        if not batch.ends:
            return
        await self._call(self._target.commit, batch.state.dump())
        last = batch.changes[-1].timestamp if batch.changes else None
        self.status.applied(self._uncommitted, last, batch.pending, datetime.now(UTC))
        self._uncommitted = 0
        if not batch.pending:
            await self._call(self._target.idle)

    async def _apply(self, changes: Sequence[Change]) -> None:
        """Apply changes, and alter the target before the first change with other columns."""
        assert self._layout is not None
        while changes:
            relation = changes[0].relation
            # Documents of older pipelines have no OID: the first change has it.
            if self._layout.relation is None and relation is not None:
                await self._alter(replace(self._layout, relation=relation))
            if any(change.relation not in (None, self._layout.relation) for change in changes):
                raise TableChanged("the table was dropped and created again")
            count = matching(changes, self._layout)
            if count:
                await self._call(self._write, changes[:count])
                changes = changes[count:]
            if changes:
                change = changes[0]
                names = {*change.data, *change.unchanged}
                layout = await self._schemas.after(self._layout, names)
                self.status.report(f"the table's columns are now {', '.join(layout.names)}")
                await self._alter(layout)

    async def _alter(self, layout: Layout) -> None:
        await self._call(self._target.alter, layout)
        self._layout = layout

    def _write(self, changes: Sequence[Change]) -> None:
        assert self._layout is not None
        if self._layout.key:
            net = NetChanges(self._layout)
            net.add(changes)
            self._target.apply(net.effect())
        else:
            # Without a key, a row of a backfill looks like a second row. The target has it already.
            self._target.replay([change for change in changes if change.op is not Op.READ])

    async def _call(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the target in its thread.

        A blocking call cannot be cancelled, so a cancelled caller waits for it to end.
        """
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._thread, lambda: call(*args, **kwargs))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait({future})
            raise
