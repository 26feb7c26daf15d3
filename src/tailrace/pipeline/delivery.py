"""What one task delivers to its lane of the sink, and the records of an open batch that go with it.

See `tailrace.open_batch` for the protocol of open batches.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NoReturn, Self

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from tailrace.errors import PoisonedError, SinkError, SinkRefusedError, SinkUnreachableError
from tailrace.observe import failpoint
from tailrace.open_batch import OpenBatch, OpenBatches
from tailrace.pipeline import opening
from tailrace.pipeline.receipts import ROW, Tally
from tailrace.pipeline.worker import freeze_gc
from tailrace.sinks.outcome import Failure, Verdict
from tailrace.sinks.registry import SINKS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tailrace.pipeline.opening import Target
    from tailrace.position import Position
    from tailrace.sinks.contract import Receipt, Sink
    from tailrace.sinks.outcome import Outcome

_NOTE_S = 0.2


class Delivery:
    """Writes messages in order. In a `with` block: an error closes the sink."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._lane = _lane(target)
        self._tally = Tally()
        self._sink: Sink | None = None
        self._record: _OpenRecord | None = None
        self._last = (-1, -1)
        self._written = False
        """Whether something is written and not flushed."""

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
        if self._sink is None:
            self._sink = opening.get(self._target, self._lane, after)
        if self._record is not None:
            self._record.check_owner()
        refused = self._sink.inspect(messages)
        if refused:
            self._stop(messages, refused)
        self._last = _check_order(messages, self._last)
        self._tally.take(messages)
        self._sink.write(messages)
        self._written = True

    def _stop(self, messages: pa.RecordBatch, refused: Mapping[int, Outcome]) -> NoReturn:
        """Deliver the transactions before that of the first refused message; raise its error."""
        assert self._sink is not None
        row = min(refused)
        lsn = messages["lsn"][row].as_py()
        settings = self._target.sink
        kind = SINKS.find(settings.type)
        torn = kind.atomic(settings) and self._written and self._last[0] == lsn
        if not torn and not kind.stores_position(settings):
            earlier = int(np.searchsorted(messages["lsn"].to_numpy(), lsn))
            if earlier:
                self._sink.write(messages.slice(0, earlier))
            _check_accepted(self._sink.flush())
        raise _error(Failure(messages.slice(row, 1), refused[row]))

    def reach(self, reached: Position, *, closed: bool) -> None:
        """Flush; an open batch has delivered everything up to a position, or ends there."""
        assert self._record is not None
        if self._flush(end=closed):
            failpoint.hit("open.after-flush")
        if closed:
            self._record.close(reached)
        else:
            self._record.note(reached, self._tally)

    def receipt(self) -> pa.Array:
        """Flush; the sum of the sink's receipts, null if there was nothing to deliver."""
        if self._flush():
            failpoint.hit("pipeline.after-flush")
        return self._tally.row() if self._sink is not None else pa.nulls(1, ROW)

    def _flush(self, *, end: bool = True) -> bool:
        """Wait until the sink has everything durably; whether something was written."""
        if not self._written or self._sink is None:
            return False
        receipt = self._sink.flush(end=end)
        _check_accepted(receipt)
        self._tally.add(receipt)
        self._written = False
        return True


class _OpenRecord:
    """The records of an open batch, kept by the task that delivers it."""

    def __init__(self, batch: OpenBatch, folder: Path) -> None:
        self._batch = batch
        self._records = OpenBatches(folder)
        self._token = self._records.own()
        self._noted, self._noted_s = batch.after, time.monotonic()

    def check_owner(self) -> None:
        """Raise SinkFencedError if another task has taken over."""
        self._records.check_owner(self._token)

    def note(self, reached: Position, tally: Tally) -> None:
        """Note the progress, if there is any since a note that is old enough."""
        now = time.monotonic()
        if reached > self._noted and now - self._noted_s >= _NOTE_S:
            self._noted, self._noted_s = reached, now
            self._records.note(self._batch, tally.progress(str(reached)))

    def close(self, reached: Position) -> None:
        """Record where the batch ends."""
        self._records.close(self._batch, reached)


def _lane(target: Target) -> int:
    """A task is a lane: rows are partitioned by its number."""
    context = TaskContext.get()
    return context.partitionId() if context is not None and target.lanes > 1 else 0


def _check_accepted(receipt: Receipt) -> None:
    """Raise the error of the first message that was refused, or else of one to be tried again."""
    if not receipt.failures:
        return
    refused = [each for each in receipt.failures if each.outcome.verdict is Verdict.REFUSED]
    raise _error((refused or receipt.failures)[0])


def _error(failure: Failure) -> SinkError:
    message, outcome = failure
    name = message["id"][0].as_py().decode("utf-8", "replace")
    if outcome.verdict is not Verdict.REFUSED:
        text = f"message {name!r} is not accepted: {outcome.reason}"
        return SinkUnreachableError(text, hint=outcome.hint)
    text = f"message {name!r} cannot be delivered: {outcome.reason}"
    kind = SinkRefusedError if outcome.code == SinkRefusedError.code else PoisonedError
    return kind(text, hint=outcome.hint)


def _check_order(messages: pa.RecordBatch, last: tuple[int, int]) -> tuple[int, int]:
    """The position of the last message. Raises if a message follows a later one."""
    first = (messages["lsn"][0].as_py(), messages["ordinal"][0].as_py())
    if first <= last:
        raise RuntimeError(f"messages are out of order: {first} follows {last}")
    return messages["lsn"][-1].as_py(), messages["ordinal"][-1].as_py()
