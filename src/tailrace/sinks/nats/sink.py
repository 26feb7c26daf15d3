"""`JetStream`: the sink. One connection, one stream, everything in order, nothing twice.

`open` reads back what the stream holds beyond the checkpoint, so that the server's window for
repeated ids is not the limit of the promise. An instance that stays open knows what it has stored:
opened again, it asks for the stream's last sequence and looks only at what others have added.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc
import structlog

from tailrace.errors import PoisonedError, SinkRefusedError, SinkUnreachableError
from tailrace.sinks.contract import Receipt
from tailrace.sinks.nats import frames
from tailrace.sinks.nats.line import Line
from tailrace.sinks.nats.publisher import Publisher
from tailrace.sinks.nats.stored import Stored, message_at, position_of, read_back
from tailrace.sinks.nats.stream import look, ready
from tailrace.sinks.nats.subjects import Subjects

if TYPE_CHECKING:
    from typing import Any

    import pyarrow as pa

    from tailrace.config import NatsSink
    from tailrace.errors import SinkError
    from tailrace.position import Position


class JetStream:
    """Messages into a JetStream stream. `name` is the pipeline's."""

    def __init__(self, settings: NatsSink, *, name: str) -> None:
        self._settings = settings
        self._name = name
        self._stream = settings.stream.name
        self._line: Line | None = None
        self._publisher: Publisher | None = None
        self._stored = Stored([], [])
        self._subjects = Subjects(())
        self._limit_bytes = 0
        self._known = 0
        """The stream's last sequence when everything in it was known to us; 0: never."""
        self._rows = self._bytes = self._skipped = self._counted = 0

    def open(self, after: Position) -> None:
        """Connect, see that the stream is there, and read back what it holds beyond `after`."""
        try:
            self._open(after)
        except BaseException:
            self.close()
            raise

    def _open(self, after: Position) -> None:
        answer = self._still_open()
        known = self._known
        if answer is None:
            self._shut()
            answer = self._connect()
        state = answer["state"]
        if state["last_seq"] < known:
            # Another stream under the same name: what we knew is about the old one.
            known = 0
        self._stored = self._beyond(after, state, known)
        if len(self._stored):
            structlog.get_logger().info(
                "nats.resumed", stream=self._stream, after=str(after), stored=len(self._stored)
            )
        self._known = state["last_seq"]

    def _still_open(self) -> dict[str, Any] | None:
        """The stream's state, over the line we have; None if it has to be made anew."""
        if self._line is None or self._rows or self._skipped:
            return None
        try:
            return look(self._line, self._stream)
        except SinkUnreachableError:
            return None

    def _connect(self) -> dict[str, Any]:
        settings = self._settings
        line = self._line = Line.connect(settings, name=self._name)
        answer = ready(line, settings, pipeline=self._name)
        config = answer["config"]
        self._subjects = Subjects(config["subjects"])
        own = int(config.get("max_msg_size", -1))
        self._limit_bytes = min(line.max_payload, own) if own > 0 else line.max_payload
        self._publisher = Publisher(
            line,
            stream=self._stream,
            max_outstanding=settings.max_outstanding,
            timeout_s=settings.timeout_s,
        )
        self._counted = 0
        return answer

    def _beyond(self, after: Position, state: dict[str, Any], known: int) -> Stored:
        assert self._line is not None
        return read_back(self._line, self._stream, state, after=after, known=known)

    def write(self, batch: pa.RecordBatch) -> None:
        """Publish what the stream does not hold yet."""
        publisher = self._opened()
        try:
            missing = self._stored.missing(batch)
            self._skipped += batch.num_rows - missing.num_rows
            fit, error = self._fit(missing)
            publisher.publish(fit)
            self._rows += fit.num_rows
            self._bytes += pc.sum(pc.binary_length(fit.column("payload"))).as_py() or 0
            if error is not None:
                publisher.settle()
                raise error
        except BaseException:
            self.close()
            raise

    def flush(self) -> Receipt:
        """Wait for every answer."""
        publisher = self._opened()
        try:
            publisher.settle()
            self._examine_repeated(publisher)
        except BaseException:
            self.close()
            raise
        repeated = publisher.acks.duplicates - self._counted
        receipt = Receipt(
            messages=self._rows - repeated,
            bytes=self._bytes,
            duplicates=self._skipped + repeated,
        )
        self._counted = publisher.acks.duplicates
        self._rows = self._bytes = self._skipped = 0
        self._known = max(self._known, publisher.acks.last_sequence)
        return receipt

    def close(self) -> None:
        """Let go of the connection; what is not flushed is read back by the next `open`."""
        self._shut()
        self._known = 0

    def _shut(self) -> None:
        line, self._line, self._publisher = self._line, None, None
        self._rows = self._bytes = self._skipped = 0
        self._stored = Stored([], [])
        if line is not None:
            line.close()

    def _opened(self) -> Publisher:
        if self._publisher is None:
            raise SinkUnreachableError(f"the sink of {self._name} is not open")
        return self._publisher

    def _fit(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, SinkError | None]:
        """The rows before the first one that can not be published, and what is wrong with it."""
        ids = batch.column("id")
        sizes = frames.header_bytes(ids) + frames.lengths(batch.column("payload"))
        reasons: list[tuple[int, str, bool]] = []
        if (large := np.flatnonzero(sizes > self._limit_bytes)).size:
            row = int(large[0])
            reasons.append((row, f"has {sizes[row]} bytes, the limit is {self._limit_bytes}", True))
        if (row_of_id := frames.broken_id(ids)) is not None:
            reasons.append((row_of_id, "has a line break in its id", True))
        if unfit := self._subjects.unfit(batch.column("destination")):
            reasons.append(unfit)
        if not reasons:
            return batch, None
        row, reason, poisoned = min(reasons)
        text = f"message {ids[row].as_py().decode('utf-8', 'replace')!r}: {reason}"
        return batch.slice(0, row), (PoisonedError if poisoned else SinkRefusedError)(text)

    def _examine_repeated(self, publisher: Publisher) -> None:
        """Make sure that what the server calls a repetition is one.

        An id is unique in its source only. If the stream holds it for another message, that of
        another pipeline or database, ours was dropped.
        """
        if publisher.acks.repeated is None:
            return
        (number, sequence), publisher.acks.repeated = publisher.acks.repeated, None
        ...
