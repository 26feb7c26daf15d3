"""One table, from a pipeline's streams into a target: a snapshot, then every change, for good.

    bootstrap   chunks of a snapshot go into the target as they come, in one transaction
    follow      whole transactions of the source, in transactions that also hold the place

Whatever dies, the target has a table as it was at one moment of the source, and knows which. When
the place is lost, or the table has changed in a way that no event tells, it is bootstrapped anew.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from tailrace.change import Op
from tailrace.client import State
from tailrace.client.names import Table
from tailrace.errors import PositionLostError, Retry, SinkError, TailraceError
from tailrace.mirror.line import Line, quick_turns
from tailrace.mirror.net import Net
from tailrace.mirror.schema import Changed, Schemas, unlike
from tailrace.mirror.status import Phase, Status
from tailrace.mirror.targets.values import transposed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tailrace.client import Batch, Change
    from tailrace.mirror.layout import Layout
    from tailrace.mirror.sources.source import MirrorSource, RowChunk
    from tailrace.mirror.targets.target import Target

T = TypeVar("T")
P = ParamSpec("P")

_AGAIN_S = (0.5, 1.0, 2.0, 5.0, 10.0)
_DOCUMENT_S = 5.0
_CANCEL_S = 0.5
_START_S = 10.0


async def end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks until they have ended.

    Once may not be enough: `asyncio.wait_for` of Python 3.11, which nats-py waits with, takes a
    cancellation for the result that comes at the same moment.
    """
    left = {*tasks}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=_CANCEL_S)


class Mirror:
    """Keeps one table of a target current, until it is cancelled.

    Without `key` the table's schema document says what its key is; `()` means that it has none.
    `fresh` begins with a new snapshot, whatever the target has.
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
    ) -> None:
        self.status = status or Status(table=table)
        self._source = source
        self._table = table
        self._target = target
        self._schemas = Schemas(source, table, key)
        self._fresh = fresh
        self._proven = False
        self._layout: Layout | None = None
        self._uncommitted = 0
        # SQLite and COPY block. One thread: a transaction belongs to it.
        self._thread = ThreadPoolExecutor(1, f"mirror {table}")

    async def run(self) -> None:
        """Mirror. What trying again cannot mend is raised, and so is what is wrong at the start."""
        failures = 0
        began = time.monotonic()
        try:
            while True:
                changes = self.status.changes
                try:
                    await self._once()
                except TailraceError as error:
                    # A pipeline that is starting, too, is waited for.
                    young = isinstance(error, SinkError) and time.monotonic() - began < _START_S
                    if error.retry is not Retry.BACK_OFF or not (self._proven or young):
                        raise
                    failures = failures + 1 if self.status.changes == changes else 0
                    delay_s = _AGAIN_S[min(failures, len(_AGAIN_S) - 1)]
                    self.status.say(f"{error.code}: {error}; again in {delay_s:g} s", Phase.WAITING)
                    await asyncio.sleep(delay_s)
        finally:
            await self._do(self._target.close)
            self._thread.shutdown()

    async def _once(self) -> None:
        """From wherever the target is, until something is in the way."""
        kept = await self._do(self._target.open)
        state = None
        if kept is not None and not self._fresh:
            state, self._layout = State.load(kept.state), kept.layout
        while True:
            if state is None:
                with quick_turns():
                    state = await self._bootstrap()
                self._fresh = False
            try:
                await self._follow(state)
            except PositionLostError as error:
                self.status.say(f"the place is lost, so a new snapshot is taken: {error}")
            except Changed as reason:
                self.status.say(f"{reason}, so a new snapshot is taken")
            await self._do(self._target.rollback)
            state = None

    async def _bootstrap(self) -> State:
        """The rows of a snapshot, loaded while it is being made."""
        status = self.status
        status.rows = 0
        status.say("asking for a snapshot", Phase.BOOTSTRAP)
        began = time.monotonic()
        # Before the snapshot: a stream that is made anew meanwhile would have lost changes.
        created = await self._source.stream_created()
        loading: str | None = None
        form = self._target.form
        async with self._source.chunks(self._table, form=form) as chunks, Line(self._load) as line:
            async for chunk in chunks:
                if chunk.snapshot_id != loading:
                    await line.empty()
                    await self._begin(chunk)
                    loading, status.rows = chunk.snapshot_id, 0
                await line.put(await self._opened(chunk))
            await line.empty()
            meta = chunks.meta
        assert meta is not None
        if meta.snapshot_id != loading:
            # Of an empty table nothing comes.
            await self._begin(None)
            status.rows = 0
        if status.rows != meta.row_count:
            raise PositionLostError(
                f"snapshot {meta.snapshot_id} has {meta.row_count} rows, the stream {status.rows}",
                hint="The stream has let go of some. Let it keep more.",
            )
        created = created or await self._source.stream_created()
        state = State.begun(str(Table.parse(self._table)), meta, str(created))
        await self._do(self._target.finish, state.dump())
        status.snapshots += 1
        status.say(f"{status.rows:,} rows loaded in {time.monotonic() - began:.1f} s")
        return state

    async def _begin(self, chunk: RowChunk | None) -> None:
        names: Iterable[str] | None = None
        if chunk is not None:
            names = chunk.columns or (await self._do(chunk.rows))[0].keys()
        self._layout = await self._schemas.layout(names, before=self._layout)
        await self._do(self._target.begin, self._layout)

    async def _opened(self, chunk: RowChunk) -> tuple[int, Any]:
        """A chunk as the target takes it, made while the target is busy with those before."""
        assert self._layout is not None
        names = self._layout.names

        def shaped() -> tuple[int, Any]:
            if chunk.columns is not None:
                text = chunk.plain()
                return text.count(b"\n"), (chunk.columns, text)
            rows = chunk.rows()
            return len(rows), self._target.shaped(transposed(rows, names))

        return await asyncio.to_thread(shaped)

    async def _load(self, opened: tuple[int, Any]) -> None:
        count, rows = opened
        await self._do(self._target.load, rows)
        self.status.rows += count

    async def _follow(self, state: State) -> None:
        """Changes from a state on. Does not end by itself."""
        assert self._layout is not None
        async with self._source.transactions(self._table, state) as batches:
            look_at = 0.0
            self.status.say("following", Phase.FOLLOWING)
            self._proven, self._uncommitted = True, 0
            while True:
                if time.monotonic() >= look_at:
                    await self._schemas.check(self._layout)
                    look_at = time.monotonic() + _DOCUMENT_S
                try:
                    async with asyncio.timeout(_DOCUMENT_S):
                        batch = await anext(batches)
                except TimeoutError:
                    continue
                await self._take(batch)

    async def _take(self, batch: Batch) -> None:
        """A batch, and the place behind it."""
        assert self._layout is not None
        try:
            await self._apply(batch.changes)
        except Changed:
            raise
        except Exception:
            # Values that do not fit: the table may have other columns or types by now.
            await self._schemas.check(self._layout)
            raise
        self._uncommitted += len(batch.changes)
        if not batch.ends:
            return
        await self._do(self._target.commit, batch.state.dump())
        last = batch.changes[-1].timestamp if batch.changes else None
        self.status.applied(self._uncommitted, last, batch.pending)
        self._uncommitted = 0
        if not batch.pending:
            await self._do(self._target.rest)

    async def _apply(self, changes: Sequence[Change]) -> None:
        """Changes, and the changes of the table that come with them."""
        assert self._layout is not None
        while changes:
            relation = changes[0].relation
            if self._layout.relation is None and relation is not None:
                await self._alter(replace(self._layout, relation=relation))
            known = (None, self._layout.relation)
            if any(change.relation not in known for change in changes):
                raise Changed("the table was made anew")
            alike = unlike(changes, self._layout)
            if alike:
                await self._do(self._work, changes[:alike])
                changes = changes[alike:]
            if changes:
                change = changes[0]
                names = {*change.data, *change.unchanged}
                layout = await self._schemas.after(self._layout, names)
                self.status.say(f"the table's columns are now {', '.join(layout.names)}")
                await self._alter(layout)

    async def _alter(self, layout: Layout) -> None:
        await self._do(self._target.alter, layout)
        self._layout = layout

    def _work(self, changes: Sequence[Change]) -> None:
        assert self._layout is not None
        if self._layout.key:
            net = Net(self._layout)
            net.add(changes)
            self._target.apply(net.effect())
        else:
            # A row that is read again cannot be told from a second one like it; it is here already.
            self._target.replay([change for change in changes if change.op is not Op.READ])

    async def _do(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the target in its thread. Whoever is cancelled waits for it: it cannot be cut."""
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._thread, lambda: call(*args, **kwargs))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait({future})
            raise
