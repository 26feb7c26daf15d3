"""What happens to messages that a sink does not accept: they are parked, or the pipeline stops.

A guard is between a task's `Delivery` and its sink. With `park: never` it stops the pipeline. The
other guard parks, and everything that it parks is durable before its `flush` returns:

| the message                               | `park: key`              | `park: message`        |
|-------------------------------------------|--------------------------|------------------------|
| is refused, or was tried often enough     | parked, blocks its group | parked                 |
| has a blocked group                       | parked as *held*         | sent                   |
| not sent, after one of its key had failed | parked as *held*         | sent after all         |
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NoReturn, Protocol

import numpy as np
import pyarrow as pa

from tailrace.errors import PoisonedError, SinkError, SinkRefusedError, SinkUnreachableError
from tailrace.message import MESSAGES, PLACE, places_of
from tailrace.parking.message import Fate, Reason, with_fate
from tailrace.sinks.blocked import BlockedGroups
from tailrace.sinks.groups import groups_of
from tailrace.sinks.outcome import Failure, Outcome, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from tailrace.parking.parking import TaskParking
    from tailrace.position import Position
    from tailrace.sinks.contract import Receipt, Sink

Park = Literal["key", "message", "never"]

_HELD = Reason(code="HELD", reason="an earlier message of its key is parked")
_PART_BYTES = 8 << 20
_REWRITE_BYTES = 64 << 20
"""How much is kept to be written again without a refused message; more is delivered again."""


class Guard(Protocol):
    """Writes messages to a sink; every message is accepted or dealt with."""

    def begin(self, position: Position) -> None:
        """Begin a micro-batch, or the rest of an open one, after a position."""

    def write(self, messages: pa.RecordBatch) -> None:
        """Take messages."""

    def flush(self, *, end: bool = True) -> Receipt:
        """Wait until everything that was taken is durable, in the sink or parked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flushes:
    """What a flush of the sink does, by its `SinkType`."""

    atomic: bool = False
    """It stores the messages of a transaction together."""
    stores_position: bool = False
    """It stores the position with the messages."""
    all_or_nothing: bool = False
    """It stores nothing if a message is not accepted."""


class StoppingGuard:
    """Raises the error of the first message that is not accepted."""

    def __init__(self, sink: Sink, flushes: Flushes) -> None:
        self._sink = sink
        self._flushes = flushes
        self._last_lsn = -1
        """The transaction of the last message since a flush; -1 if there is none."""

    def begin(self, position: Position) -> None:
        """Nothing to prepare."""
        del position

    def write(self, messages: pa.RecordBatch) -> None:
        """Write messages, or stop at the first refused one."""
        refused = self._sink.inspect(messages)
        if refused:
            self._stop(messages, refused)
        self._sink.write(messages)
        self._last_lsn = messages["lsn"][-1].as_py()

    def _stop(self, messages: pa.RecordBatch, refused: Mapping[int, Outcome]) -> NoReturn:
        """Deliver the transactions before that of the first refused message; raise its error."""
        row = min(refused)
        lsn = messages["lsn"][row].as_py()
        torn = self._flushes.atomic and self._last_lsn == lsn
        if not torn and not self._flushes.stores_position:
            earlier = int(np.searchsorted(messages["lsn"].to_numpy(), lsn))
            if earlier:
                self._sink.write(messages.slice(0, earlier))
            self.flush()
        raise _error(Failure(messages.slice(row, 1), refused[row]))

    def flush(self, *, end: bool = True) -> Receipt:
        """Flush the sink."""
        receipt = self._sink.flush(end=end)
        if receipt.failures:
            final = [each for each in receipt.failures if each.outcome.verdict is Verdict.REFUSED]
            raise _error((final or receipt.failures)[0])
        self._last_lsn = -1
        return receipt


class ParkingGuard:
    """Parks what is not accepted, and what has to wait for it."""

    def __init__(
        self,
        sink: Sink,
        flushes: Flushes,
        parking: TaskParking,
        *,
        blocks: bool,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        self._sink = sink
        self._flushes = flushes
        self._parking = parking
        self._blocks = blocks
        self._now_us = now_us
        self._blocked = BlockedGroups()
        self._decided = np.empty(0, PLACE)
        """Messages of this batch that an earlier attempt has parked, or delivered in a release."""
        self._unflushed: list[pa.RecordBatch] = []
        """What an all-or-nothing sink forgets if it refuses a message."""
        self._unflushed_bytes = 0
        """Their size. Beyond the limit they are not kept."""
        self._rows: list[pa.RecordBatch] = []
        """Parked messages that are not durable yet."""
        self._parked = 0
        self._released: pa.RecordBatch | None = None
        self._returned: list[NDArray[np.void]] = []
        """The places of released messages that are parked again."""

    def begin(self, position: Position) -> None:
        """Load the groups that are blocked from a position on."""
        self._decided = self._parking.decided(position)
        if self._blocks:
            self._blocked = self._parking.blocked(position)

    def write(self, messages: pa.RecordBatch) -> None:
        """Write the messages that the sink takes, and park the others."""
        self._send(self._inspected(messages))

    def _send(self, messages: pa.RecordBatch) -> None:
        if self._flushes.stores_position:
            # The sink may store the position now, and a replay would then pass over what is parked.
            self._write_part()
        if self._flushes.all_or_nothing:
            self._remember(messages)
        if messages.num_rows:
            self._sink.write(messages)

    def _remember(self, messages: pa.RecordBatch) -> None:
        """Keep messages until the flush, unless a large transaction exceeds the memory for it."""
        self._unflushed_bytes += messages.nbytes
        self._unflushed.append(messages)
        if self._unflushed_bytes > _REWRITE_BYTES:
            self._unflushed.clear()

    def _unwritten(self) -> list[pa.RecordBatch]:
        """What an all-or-nothing sink has forgotten, without what is parked.

        Raises SinkUnreachableError if it is not kept: the batch is delivered again, and what was
        parked in this attempt is passed over.
        """
        if self._unflushed_bytes > _REWRITE_BYTES:
            self._write_part()
            raise SinkUnreachableError(
                "the sink refused messages of a large transaction: it is delivered again "
                "without them",
                hint="The refused messages are parked: tailrace parked ls.",
            )
        again, self._unflushed, self._unflushed_bytes = self._unflushed, [], 0
        return again

    def release(self, messages: pa.RecordBatch) -> Receipt:
        """Deliver parked messages again, rows of RELEASED, and note what became of them."""
        # They are parked themselves: only those that fail now block others.
        self._blocked, self._released = BlockedGroups(), messages
        self.write(messages.select(MESSAGES.names))
        return self.flush()

    def flush(self, *, end: bool = True) -> Receipt:
        """Flush the sink, and make durable what was parked."""
        receipt = self._sink.flush(end=end)
        failures, sent = receipt.failures, 0
        while failures:
            sent += sum(each.outcome.verdict is not Verdict.UNSENT for each in failures)
            again = self._settle(failures)
            if self._flushes.all_or_nothing:
                again = self._unwritten()
            for messages in again:
                # Not `write`: a message before the refused one of its group does not wait for it.
                self._send(messages)
            following = self._sink.flush(end=end)
            failures, receipt = following.failures, _sum(receipt, following)
        self._unflushed, self._unflushed_bytes = [], 0
        self._note_released()
        self._write_part()
        parked, self._parked = self._parked, 0
        return replace(receipt, failures=(), failed=receipt.failed + sent, parked=parked)

    def _inspected(self, messages: pa.RecordBatch) -> pa.RecordBatch:
        """The messages to send; the others are parked."""
        refused = self._sink.inspect(messages)
        if not refused and not self._blocked and not len(self._decided):
            return messages
        decided = np.isin(places_of(messages), self._decided)
        failed = decided.copy()
        failed[list(refused)] = True
        waiting = self._waiting(messages, failed)
        self._park(messages, failed & ~waiting & ~decided, waiting & ~decided, refused)
        return messages.filter(pa.array(~(failed | waiting)))

    def _settle(self, failures: Sequence[Failure]) -> list[pa.RecordBatch]:
        """Park messages that the sink did not accept. Returns those that can be sent after all."""
        outcomes = {number: each.outcome for number, each in enumerate(failures)}
        throttled = [each for each in failures if each.outcome.verdict is Verdict.THROTTLED]
        if throttled:
            raise _error(throttled[0])
        messages = pa.concat_batches([each.message for each in failures])
        failed = np.array([each.verdict is not Verdict.UNSENT for each in outcomes.values()])
        waiting = self._waiting(messages, failed)
        self._park(messages, failed & ~waiting, waiting, outcomes)
        if self._flushes.all_or_nothing:
            self._forget(messages.filter(pa.array(failed | waiting)))
        unsent = messages.filter(pa.array(~(failed | waiting)))
        return [unsent] if unsent.num_rows else []

    def _waiting(self, messages: pa.RecordBatch, failed: NDArray[np.bool_]) -> NDArray[np.bool_]:
        if not self._blocks:
            return np.zeros(messages.num_rows, np.bool_)
        return self._blocked.hold_back(groups_of(messages), np.flatnonzero(failed).tolist())

    def _forget(self, parked: pa.RecordBatch) -> None:
        """Remove parked messages from those that are written again."""
        places = places_of(parked)
        self._unflushed = [
            messages.filter(pa.array(~np.isin(places_of(messages), places)))
            for messages in self._unflushed
        ]

    def _park(
        self,
        messages: pa.RecordBatch,
        failed: NDArray[np.bool_],
        waiting: NDArray[np.bool_],
        outcomes: Mapping[int, Outcome],
    ) -> None:
        reasons = [Reason.of(outcomes[row]) for row in np.flatnonzero(failed).tolist()]
        self._keep(messages.filter(pa.array(failed)), Fate.PARKED, reasons)
        self._keep(messages.filter(pa.array(waiting)), Fate.HELD, [_HELD])
        if self._released is None:
            self._parked += int(np.count_nonzero(failed | waiting))

    def _keep(self, messages: pa.RecordBatch, fate: Fate, reasons: Sequence[Reason]) -> None:
        if not messages.num_rows:
            return
        if self._released is not None:
            self._returned.append(places_of(messages))
            rows = np.isin(places_of(self._released), self._returned[-1])
            messages = self._released.filter(pa.array(rows))
        self._rows.append(with_fate(messages, fate, reasons, at_us=self._now_us()))
        if sum(rows.nbytes for rows in self._rows) > _PART_BYTES:
            self._write_part()

    def _note_released(self) -> None:
        """Note which released messages were accepted: all that are not parked again."""
        if self._released is None:
            return
        rows = self._released
        for places in (*self._returned, self._decided):
            rows = rows.filter(pa.array(~np.isin(places_of(rows), places)))
        if rows.num_rows:
            empty = pa.repeat(pa.scalar(b"", pa.binary()), rows.num_rows)
            at = rows.schema.get_field_index("payload")
            rows = rows.set_column(at, rows.schema.field(at), empty)
            self._rows.append(with_fate(rows, Fate.DELIVERED, [Reason()], at_us=self._now_us()))
        self._released, self._returned = None, []

    def _write_part(self) -> None:
        """Make durable what is parked."""
        if self._rows:
            rows = pa.concat_batches(self._rows)
            order = np.lexsort((rows["ordinal"].to_numpy(), rows["lsn"].to_numpy()))
            self._parking.park(rows.take(pa.array(order)))
            self._rows = []


def _error(failure: Failure) -> SinkError:
    message, outcome = failure
    name = message["id"][0].as_py().decode("utf-8", "replace")
    if outcome.verdict is not Verdict.REFUSED:
        text = f"message {name!r} is not accepted: {outcome.reason}"
        return SinkUnreachableError(text, hint=outcome.hint)
    text = f"message {name!r} cannot be delivered: {outcome.reason}"
    kind = SinkRefusedError if outcome.code == SinkRefusedError.code else PoisonedError
    return kind(text, hint=outcome.hint)


def _sum(first: Receipt, second: Receipt) -> Receipt:
    """Two receipts of one flush."""
    return replace(
        second,
        messages=first.messages + second.messages,
        bytes=first.bytes + second.bytes,
        duplicates=first.duplicates + second.duplicates,
        failed=first.failed + second.failed,
    )
