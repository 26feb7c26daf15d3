"""The bulk path: batches out, answers in, on one connection.

A batch is framed column by column and handed to the kernel in slices. Answers are counted only
when the next slice needs room, or everything has to be settled; nothing runs in the background.

Order can be damaged in one way: a message in the middle is refused (the stream is full, say) or
lost (with a cluster's leader) while later ones, already on their way, are stored. They cannot be
taken back. Nothing more is sent, and it is said loudly.
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
from tailrace.jetstream.bulk.atomic_batches import MOST_ROWS, starts
from tailrace.jetstream.protocol import Message
from tailrace.jetstream.stream import look

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    import numpy.typing as npt
    import pyarrow as pa

    from tailrace.jetstream.line import Line

    Row = dict[str, Any]

_FRAME_ROWS = 4096
_FRAME_BYTES = 8 * 2**20
_SEND_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows on their way, kept so that a message can be named by its number."""

    first: int
    rows: pa.RecordBatch

    @property
    def end(self) -> int:
        return self.first + int(self.rows.num_rows)


class Publisher:
    """Publishes rows that are known to be fit, and knows how many are not answered."""

    def __init__(self, line: Line, *, stream: str, max_outstanding: int, timeout_s: float) -> None:
        self.acks = Acks(line.inbox, stream)
        self._line = line
        self._stream = stream
        self._most = max_outstanding
        self._timeout_s = timeout_s
        self._sent = 0
        self.repeated: tuple[int, Row] | None = None
        """The first message the stream had before: the sequence it has there, and our row."""
        self._flight: deque[_Part] = deque()

    @property
    def outstanding(self) -> int:
        """Messages sent and not answered."""
        return self._sent - self.acks.settled

    def publish(self, batch: pa.RecordBatch, *, atomic: bool = False) -> None:
        """Send rows in order, waiting while too many are on their way.

        `atomic` rows are whole transactions.
        """
        bounds = frames.byte_bounds(batch.column("payload"))
        ends = _atomic_ends(batch, bounds) if atomic else np.arange(1, batch.num_rows + 1)
        for row, end in _slices(ends, bounds, rows=_FRAME_ROWS, size=_FRAME_BYTES):
            part = batch.slice(row, end - row)
            low, high = np.searchsorted(ends, [row, end], side="right")
            inside = ends[low:high] - row
            self._flight.append(_Part(self._sent, part))
            if atomic:
                begins = np.r_[0, inside[:-1]]
                framed = frames.frame_atomic(part, begins, inbox=self._line.inbox, first=self._sent)
            else:
                framed = frames.frame(part, inbox=self._line.inbox, first=self._sent)
            self._send(framed, inside)

    def _send(self, framed: pa.Array, ends: npt.NDArray[np.int64]) -> None:
        bounds = frames.byte_bounds(framed)
        data = memoryview(framed.buffers()[2])
        # A quarter at a time: the server has three to go on with while we wait for room.
        quarter = max(1, self._most // 4)
        for row, end in _slices(ends, bounds, rows=quarter, size=_SEND_BYTES):
            # An atomic batch is answered once it is whole, so it goes out however large it is. With
            # a gap in the answers nothing more goes out: it might be stored before what is missing.
            self.settle(0 if self.acks.gap else max(0, self._most - (end - row)))
            self._line.send(data[bounds[row] : bounds[end]])
            self._sent += end - row

    def settle(self, most: int = 0) -> None:
        """Wait until at most this many messages are without an answer."""
        while self.outstanding > most:
            self._await_acks()
            if self.acks.failures:
                self._fail()
        while self._flight and self._flight[0].end <= self.acks.settled:
            self._flight.popleft()

    def _await_acks(self) -> None:
        """Wait for an answer, or several."""
        deadline = time.monotonic() + self._timeout_s
        try:
            while not self._receive(deadline):
                pass
        except SinkError:
            if self.acks.gap:
                structlog.get_logger().error(
                    "nats.order-damaged", stream=self._stream, unanswered=self.acks.gap
                )
            raise

    def _receive(self, deadline: float) -> int:
        """Take in what comes; how many answers there were."""
        before = self.acks.settled
        data = self._line.fetch(deadline)
        for event in self._line.digest(data[self.acks.count(data) :]):
            if isinstance(event, Message):
                self.acks.take(event)
        if self.acks.repeated and self.repeated is None:
            # Looked up at once: soon its batch is let go.
            number, sequence = self.acks.repeated
            self.repeated = sequence, self._row(number)
        return self.acks.settled - before

    def _row(self, number: int) -> Row:
        """What is on its way under a number."""
        for part in self._flight:
            if part.first <= number < part.end:
                (row,) = part.rows.slice(number - part.first, 1).to_pylist()
                return dict(row)
        return {}

    def _fail(self) -> None:
        """Hear what became of the messages behind the refused one, and raise."""
        try:
            while self.outstanding:
                self._await_acks()
        except SinkError as cut:
            structlog.get_logger().warning("nats.unheard", unacked=self.outstanding, cause=str(cut))
        failure = min(self.acks.failures, key=lambda each: each.number)
        # Everything before it was stored, so whatever else was stored stands behind it.
        behind = self.acks.settled - sum(each.count for each in self.acks.failures) - failure.number
        name = self._row(failure.number).get("id", b"of unknown id").decode("utf-8", "replace")
        error = failure.error(f"message {name}", self._stream)
        if failure.unacked and look(self._line, self._stream) is not None:
            # The stream took this subject when we looked, and is still there.
            error = SinkUnreachableError(f"{error}; the stream may be without a leader")
        if behind > 0:
            structlog.get_logger().error(
                "nats.order-damaged", stream=self._stream, refused=name, stored_behind=behind
            )
            text = f"{error}; {behind} later ones were stored before it"
            error = type(error)(text, hint=error.hint)
        raise error


def _atomic_ends(batch: pa.RecordBatch, bounds: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Where atomic batches end.

    Small transactions share one: a server takes milliseconds for each, and whoever reads sees no
    part of a transaction all the same.
    """
    whole = np.r_[starts(batch)[1:], batch.num_rows]
    slices = _slices(whole, bounds, rows=MOST_ROWS, size=_FRAME_BYTES)
    return np.array([end for _, end in slices], np.int64)


def _slices(
    ends: npt.NDArray[np.int64], bounds: npt.NDArray[np.int64], *, rows: int, size: int
) -> Iterator[tuple[int, int]]:
    """Ranges of at most so many rows and bytes that stop at one of `ends`, each at least one."""
    row, at = 0, 0
    while at < len(ends):
        fitting = int(np.searchsorted(bounds, bounds[row] + size, side="right")) - 1
        at = max(int(np.searchsorted(ends, min(fitting, row + rows), side="right")), at + 1)
        yield row, int(ends[at - 1])
        row = int(ends[at - 1])
