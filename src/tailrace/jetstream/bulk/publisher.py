"""The publisher: batches out, acknowledgements in, on one connection.

A batch is framed column by column and passed to the kernel in slices. Acknowledgements are counted
only when the next slice needs room, or on `flush`; nothing runs in the background.

Order can be damaged in one way: the stream refuses a message (because it is full, for example) or
loses it (with a cluster's leader) and stores later ones that were already sent. These cannot be
removed. The publisher then sends nothing more and logs `nats.order_damaged`.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import structlog

from tailrace.errors import SinkError, SinkUnreachableError
from tailrace.jetstream.bulk import frames
from tailrace.jetstream.bulk.acks import Acks
from tailrace.jetstream.bulk.atomic_batches import MAX_ROWS, starts
from tailrace.jetstream.protocol import Message
from tailrace.jetstream.stream import find_stream

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    import numpy.typing as npt
    import pyarrow as pa

    from tailrace.jetstream.connection import NatsConnection

    Row = dict[str, Any]

_FRAME_ROWS = 4096
_FRAME_BYTES = 8 * 2**20
_SEND_BYTES = 2**20
_MAX_REPEATED = 1000


@dataclass(frozen=True, slots=True)
class _Sent:
    """Rows without an answer yet, by which a message can be named from its number."""

    first: int
    rows: pa.RecordBatch

    @property
    def end(self) -> int:
        return self.first + int(self.rows.num_rows)


class Publisher:
    """Publishes rows that the caller has validated, and counts their acknowledgements."""

    def __init__(
        self, connection: NatsConnection, *, stream: str, max_outstanding: int, timeout_s: float
    ) -> None:
        self.acks = Acks(connection.inbox, stream)
        self._connection = connection
        self._stream = stream
        self._max_outstanding = max_outstanding
        self._timeout_s = timeout_s
        self._sent = 0
        self.fields = b""
        """Header lines of every message, each after its line break."""
        self.repeated: list[tuple[int, Row]] = []
        """Messages that the stream already held, at most _MAX_REPEATED of them: their sequences
        there, and their rows. Read-back skips what is known to be stored, so these are few."""
        self._unanswered: deque[_Sent] = deque()

    @property
    def outstanding(self) -> int:
        """Messages that are sent and have no answer yet."""
        return self._sent - self.acks.answered

    def publish(self, batch: pa.RecordBatch, *, atomic: bool = False) -> None:
        """Send rows in order; wait while too many have no answer.

        `atomic` rows are whole transactions.
        """
        bounds = frames.byte_bounds(batch.column("payload"))
        ends = _atomic_ends(batch, bounds) if atomic else np.arange(1, batch.num_rows + 1)
        for row, end in _slices(ends, bounds, rows=_FRAME_ROWS, size=_FRAME_BYTES):
            part = batch.slice(row, end - row)
            low, high = np.searchsorted(ends, [row, end], side="right")
            inside = ends[low:high] - row
            self._unanswered.append(_Sent(self._sent, part))
            self._send(self._framed(part, inside, atomic=atomic), inside)

    def _framed(
        self, rows: pa.RecordBatch, ends: npt.NDArray[np.int64], *, atomic: bool
    ) -> pa.Array:
        inbox, first, fields = self._connection.inbox, self._sent, self.fields
        if not atomic:
            return frames.frame(rows, inbox=inbox, first=first, fields=fields)
        begins = np.r_[0, ends[:-1]]
        return frames.frame_atomic(rows, begins, inbox=inbox, first=first, fields=fields)

    def _send(self, framed: pa.Array, ends: npt.NDArray[np.int64]) -> None:
        bounds = frames.byte_bounds(framed)
        data = memoryview(framed.buffers()[2])
        # A quarter of the window per send: the server works on three quarters during the wait.
        quarter = max(1, self._max_outstanding // 4)
        for row, end in _slices(ends, bounds, rows=quarter, size=_SEND_BYTES):
            # An atomic batch has one answer, at its end, so it is sent whole, whatever its size.
            # After a gap in the answers nothing is sent until all have arrived: a later message
            # must not be stored before one that is missing.
            room = max(0, self._max_outstanding - (end - row))
            self.flush(0 if self.acks.gap else room)
            self._connection.send(data[bounds[row] : bounds[end]])
            self._sent += end - row

    def flush(self, max_outstanding: int = 0) -> None:
        """Wait until at most this many messages have no answer."""
        while self.outstanding > max_outstanding:
            self._await_acks()
            if self.acks.failures:
                self._fail()
        while self._unanswered and self._unanswered[0].end <= self.acks.answered:
            self._unanswered.popleft()

    def _await_acks(self) -> None:
        """Wait for the next answers."""
        deadline = time.monotonic() + self._timeout_s
        try:
            while not self._receive(deadline):
                pass
        except SinkError:
            if self.acks.gap:
                structlog.get_logger().error(
                    "nats.order_damaged", stream=self._stream, unacked=self.acks.gap
                )
            raise

    def _receive(self, deadline: float) -> int:
        """Read the next bytes; how many answers they hold."""
        before = self.acks.answered
        data = self._connection.receive(deadline)
        for event in self._connection.parse(data[self.acks.count(data) :]):
            if isinstance(event, Message):
                self.acks.take(event)
        # Looked up now: `flush` drops the rows of answered messages.
        for number, sequence in self.acks.repeated[: _MAX_REPEATED - len(self.repeated)]:
            self.repeated.append((sequence, self._row(number)))
        self.acks.repeated.clear()
        return self.acks.answered - before

    def _row(self, number: int) -> Row:
        """The row of a message that has no answer yet."""
        for part in self._unanswered:
            if part.first <= number < part.end:
                (row,) = part.rows.slice(number - part.first, 1).to_pylist()
                return dict(row)
        return {}

    def _fail(self) -> None:
        """Wait for the answers to the messages after the refused one, and raise its error."""
        try:
            while self.outstanding:
                self._await_acks()
        except SinkError as lost:
            structlog.get_logger().warning(
                "nats.acks_missing", unacked=self.outstanding, reason=str(lost)
            )
        failure = min(self.acks.failures, key=lambda each: each.number)
        # Every message before the first failure was stored, so any other stored one is a later one.
        refused = sum(each.count for each in self.acks.failures)
        stored_later = self.acks.answered - refused - failure.number
        name = self._row(failure.number).get("id", b"of unknown id").decode("utf-8", "replace")
        error = failure.error(f"message {name}", self._stream)
        if failure.no_responders and find_stream(self._connection, self._stream) is not None:
            # The stream accepted this subject when the sink opened, and still exists.
            error = SinkUnreachableError(f"{error}; the stream may have no leader")
        if stored_later > 0:
            structlog.get_logger().error(
                "nats.order_damaged",
                stream=self._stream,
                refused=name,
                stored_later=stored_later,
            )
            text = f"{error}; {stored_later} later messages were stored before it"
            error = type(error)(text, hint=error.hint)
        raise error


def _atomic_ends(batch: pa.RecordBatch, bounds: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Where atomic batches end.

    Small transactions share a batch: a server needs milliseconds per batch, and a consumer still
    never sees part of a transaction.
    """
    whole = np.r_[starts(batch)[1:], batch.num_rows]
    slices = _slices(whole, bounds, rows=MAX_ROWS, size=_FRAME_BYTES)
    return np.array([end for _, end in slices], np.int64)


def _slices(
    ends: npt.NDArray[np.int64], bounds: npt.NDArray[np.int64], *, rows: int, size: int
) -> Iterator[tuple[int, int]]:
    """Ranges of at most `rows` rows and `size` bytes that stop at one of `ends`.

    Each range has at least one end, whatever its size.
    """
    row, at = 0, 0
    while at < len(ends):
        fitting = int(np.searchsorted(bounds, bounds[row] + size, side="right")) - 1
        at = max(int(np.searchsorted(ends, min(fitting, row + rows), side="right")), at + 1)
        yield row, int(ends[at - 1])
        row = int(ends[at - 1])
