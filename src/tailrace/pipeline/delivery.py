"""What one task delivers to its lane of the sink, and the records of an open batch that go with it.

See `tailrace.open_batch` for the protocol of open batches.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Self

import pyarrow as pa
from pyspark import TaskContext

from tailrace.observe import failpoint
from tailrace.open_batch import OpenBatch, OpenBatches
from tailrace.pipeline import opening
from tailrace.pipeline.guard import ParkingGuard
from tailrace.pipeline.receipts import ROW, Tally
from tailrace.pipeline.worker import freeze_gc
from tailrace.position import Lsn, Position

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.pipeline.guard import Guard
    from tailrace.pipeline.opening import Target

_NOTE_S, _NOTE_WRITTEN_S = 0.2, 2.0


class Delivery:
    """Writes messages in order. In a `with` block: an error closes the sink."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._lane = _lane(target)
        self._tally = Tally(target.log)
        self._guard: Guard | None = None
        self._record: _OpenRecord | None = None
        self._last = (-1, -1)
        self._noted_s = time.monotonic()
        self._written = False
        """Whether something is written and not decided."""
        self._upto: Position | None = None
        """Up to where it is decided; None: all of it is."""
        self._reached: deque[Position] = deque()
        """Positions up to which everything was written, while something of it is not decided."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            opening.discard(self._target, self._lane)
        else:
            freeze_gc()

    def own(self, batch: OpenBatch, records: Path) -> None:
        """Become the task that delivers an open batch; `records` is the folder of its records."""
        if self._record is None:
            self._record = _OpenRecord(batch, records)

    def write(self, messages: pa.RecordBatch, after: Position) -> None:
        """Write messages that come after a position."""
        if not messages.num_rows:
            return
        guard = self._open(after)
        if self._record is not None:
            self._record.check_owner()
        self._last = _check_order(messages, self._last)
        self._tally.take(messages)
        guard.write(messages)
        self._written = True
        self._note_written()

    def _note_written(self) -> None:
        """Note how far this task has come: its batch moves the position only when it ends."""
        now = time.monotonic()
        if self._target.records is not None and now - self._noted_s >= _NOTE_WRITTEN_S:
            self._noted_s = now
            written = Position(Lsn(self._last[0]), self._last[1])
            OpenBatches(self._target.records).note_written(self._lane, written)

    def release(self, number: int, after: Position) -> None:
        """Deliver the parked messages of a release, after a position."""
        parking = self._target.parking
        assert parking is not None
        guard = self._open(after)
        assert isinstance(guard, ParkingGuard)
        self._tally.add(guard.release(parking.for_task().release(number)))

    def _open(self, after: Position) -> Guard:
        if self._guard is None:
            self._guard = opening.guard(self._target, opening.get(self._target, self._lane, after))
            self._guard.begin(after)
        return self._guard

    def reach(self, reached: Position, *, closed: bool) -> None:
        """Flush; an open batch has delivered everything up to a position, or ends there."""
        assert self._record is not None
        self._reached.append(reached)
        if self._flush(end=closed):
            failpoint.hit("open.after-flush")
        settled = self._settled()
        if closed:
            self._record.close(reached)
        else:
            self._record.note(settled, self._tally)

    def receipt(self) -> pa.Array:
        """Flush; the sum of the sink's receipts, null if there was nothing to deliver."""
        if self._flush(end=True):
            failpoint.hit("pipeline.after-flush")
        return self._tally.row(self._lane) if self._guard is not None else pa.nulls(1, ROW)

    def _flush(self, *, end: bool) -> bool:
        """Wait until what was written is decided; without `end` some of it may stay undecided.

        Returns whether there was anything to wait for.
        """
        if not self._written or self._guard is None:
            return False
        receipt = self._guard.flush(end=end)
        self._tally.add(receipt)
        self._upto, self._written = receipt.upto, receipt.upto is not None
        return True

    def _settled(self) -> Position | None:
        """The last of the reached positions up to which everything is decided, if there is one."""
        settled = None
        while self._reached and (self._upto is None or self._reached[0] <= self._upto):
            settled = self._reached.popleft()
        return settled


class _OpenRecord:
    """The records of an open batch, kept by the task that delivers it."""

    def __init__(self, batch: OpenBatch, folder: Path) -> None:
        self._batch = batch
        self._records = OpenBatches(folder)
        self._token = self._records.own()
        self._noted, self._noted_s = self._records.begin(batch), time.monotonic()
        self._failed = 0

    def check_owner(self) -> None:
        """Raise SinkFencedError if another task has taken over."""
        self._records.check_owner(self._token)

    def note(self, settled: Position | None, tally: Tally) -> None:
        """Note the progress, and attempts that failed, if there are any since a note that is old
        enough."""
        now = time.monotonic()
        reached = max(settled or self._noted, self._noted)
        new = reached > self._noted or tally.failed > self._failed
        if new and now - self._noted_s >= _NOTE_S:
            self._noted, self._noted_s, self._failed = reached, now, tally.failed
            self._records.note(self._batch, tally.progress(str(reached)))

    def close(self, reached: Position) -> None:
        """Record where the batch ends."""
        self.check_owner()
        self._records.close(self._batch, reached)


def _lane(target: Target) -> int:
    """A task is a lane: rows are partitioned by its number."""
    context = TaskContext.get()
    return context.partitionId() if context is not None and target.lanes > 1 else 0


def _check_order(messages: pa.RecordBatch, last: tuple[int, int]) -> tuple[int, int]:
    """The position of the last message. Raises if a message follows a later one."""
    first = (messages["lsn"][0].as_py(), messages["ordinal"][0].as_py())
    if first <= last:
        raise RuntimeError(f"messages are out of order: {first} follows {last}")
    return messages["lsn"][-1].as_py(), messages["ordinal"][-1].as_py()
