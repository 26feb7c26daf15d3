"""The bulk path: batches out, answers in, on one connection.

A batch is framed column by column and handed to the kernel in slices. Answers are counted only
when the next slice needs room, or everything has to be settled; nothing runs in the background.

Order can be damaged in one way: a message in the middle is refused (the stream is full, say) while
later ones, already on their way, are stored. They cannot be taken back; they are counted, and said
loudly.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

import numpy as np
import structlog

from tailrace.errors import SinkError
from tailrace.sinks.nats import frames
from tailrace.sinks.nats.acks import Acks
from tailrace.sinks.nats.protocol import Message

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from tailrace.sinks.nats.line import Line

_FRAME_ROWS = 4096
_FRAME_BYTES = 8 * 2**20
_SEND_BYTES = 2**20


class Publisher:
    """Publishes rows that are known to be fit, and knows how many are not answered."""

    def __init__(
        self, line: Line, *, stream: str, max_outstanding: int, timeout_s: float
    ) -> None:
        self.acks = Acks(line.inbox, stream)
        self._line = line
        self._stream = stream
        self._most = max_outstanding
        self._timeout_s = timeout_s
        self._sent = 0
        # What is on its way, to name a message by its number: first number, rows.
        self._flight: deque[tuple[int, pa.RecordBatch]] = deque()

    @property
    def outstanding(self) -> int:
        """Messages sent and not answered."""
        return self._sent - self.acks.settled

    def publish(self, batch: pa.RecordBatch) -> None:
        """Send rows in order; waits while too many are on their way."""
        for part in _parts(batch):
            framed = frames.frame(part, inbox=self._line.inbox, first=self._sent)
            self._flight.append((self._sent, part))
            self._send(framed)

    def _send(self, framed: pa.Array) -> None:
        bounds = np.frombuffer(framed.buffers()[1], np.int32)
        data = memoryview(framed.buffers()[2])
        # A quarter at a time: the server has three to go on with while we wait for room.
        quarter = max(1, self._most // 4)
        row, rows = 0, len(framed)
        while row < rows:
            fitting = int(np.searchsorted(bounds, bounds[row] + _SEND_BYTES, side="right")) - 1
            end = min(max(fitting, row + 1), row + quarter, rows)
            self.settle(self._most - (end - row))
            self._line.send(data[bounds[row] : bounds[end]])
            self._sent += end - row
            row = end

    def settle(self, most: int = 0) -> None:
        """Wait until at most this many messages are without an answer."""
        deadline = time.monotonic() + self._timeout_s
        while self.outstanding > most:
            if self._receive(deadline):
                deadline = time.monotonic() + self._timeout_s
            if self.acks.failures:
                self._fail()
        while self._flight and self.acks.settled >= self._flight[0][0] + self._flight[0][1].num_rows:
            self._flight.popleft()

    def _receive(self, deadline: float) -> int:
        """Take in what comes; how many answers there were."""
        before = self.acks.settled
        data = self._line.fetch(deadline)
        for event in self._line.digest(data[self.acks.count(data) :]):
            if isinstance(event, Message):
                self.acks.take(event)
        return self.acks.settled - before

    def row(self, number: int) -> tuple[bytes, bytes, bytes] | None:
        """Destination, id and payload of a message on its way."""
        for first, batch in self._flight:
            if first <= number < first + batch.num_rows:
                at = number - first
                return tuple(
                    batch.column(name)[at].as_py() for name in ("destination", "id", "payload")
                )
        return None

    def _fail(self) -> None:
        """Hear what became of the messages behind the refused one, and raise."""
        deadline = time.monotonic() + self._timeout_s
        unheard = ""
        try:
            while self.outstanding:
                self._receive(deadline)
        except SinkError as error:
            unheard = f"; then {error}"
        failure = min(self.acks.failures, key=lambda failure: failure.number)
        # Everything before it was stored, so what was stored beyond that stands behind it.
        behind = self.acks.settled - len(self.acks.failures) - failure.number
        if behind > 0:
            structlog.get_logger().error(
                "nats.order-damaged",
                stream=self._stream,
                stored_behind=behind,
                refused=failure.description,
            )
        row = self.row(failure.number)
        what = f"message {row[1].decode('utf-8', 'replace')}" if row else "a message"
        error = failure.error(what, self._stream)
        if behind > 0:
            text = f"{error}; {behind} later messages were stored before it{unheard}"
            error = type(error)(text, hint=error.hint)
        raise error


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Slices of bounded size, whatever the batch's."""
    row, rows = 0, batch.num_rows
    payload = batch.column("payload")
    bounds = np.frombuffer(payload.buffers()[1], np.int32)[payload.offset :][: rows + 1]
    while row < rows:
        fitting = int(np.searchsorted(bounds, bounds[row] + _FRAME_BYTES, side="right")) - 1
        end = min(max(fitting, row + 1), row + _FRAME_ROWS, rows)
        yield batch.slice(row, end - row)
        row = end
