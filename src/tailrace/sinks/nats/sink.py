"""`JetStream`: the sink. One connection, one stream, everything in order, nothing twice.

`open` reads back what the stream holds beyond the checkpoint, so that the server's window for
repeated ids is not the limit of the promise. An instance that stays open need not do so every
time: what came into the stream since it last looked, by whomever, the server itself refuses as
long as it is younger than the window. It looks again before that is over.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc
import structlog

from tailrace.errors import PoisonedError, SinkRefusedError, SinkUnreachableError
from tailrace.jetstream.bulk import frames
from tailrace.jetstream.bulk.atomic_batches import Transactions
from tailrace.jetstream.bulk.publisher import Publisher
from tailrace.jetstream.bulk.read_back import OwnSubjects, ReadBack, message_at, read_back
from tailrace.jetstream.connection import NatsConnection
from tailrace.jetstream.stream import find_stream, ready
from tailrace.jetstream.subjects import Subjects
from tailrace.position import ORIGIN
from tailrace.sinks.contract import Receipt

if TYPE_CHECKING:
    from typing import Any

    import pyarrow as pa

    from tailrace.config import NatsSink
    from tailrace.errors import SinkError
    from tailrace.position import Position


class JetStream:
    """Messages into a JetStream stream. `name` is the pipeline's, and so are the subjects."""

    def __init__(self, settings: NatsSink, *, name: str, subjects: str = ">") -> None:
        self._settings = settings
        self._place = OwnSubjects(settings.stream.name, subjects)
        self._name = name
        self._stream = settings.stream.name
        self._transactions = Transactions()
        self._line: NatsConnection | None = None
        self._publisher: Publisher | None = None
        self._subjects = Subjects(())
        self._limit_bytes = 0
        self._created = ""
        self._stored = ReadBack()
        self._looked_s = -math.inf
        """When we last read back."""
        self._window_s = 0.0
        self._after = ORIGIN
        self._due_s = math.inf
        """When to read back in the middle of a batch, since `open` did not."""
        self._rows = self._bytes = self._skipped = self._counted = 0

    def open(self, after: Position) -> None:
        """Connect, see that the stream is there, and read back what it holds beyond `after`."""
        try:
            answer = self._still_open() or self._connect()
            if answer["created"] != self._created:
                # Another stream under the name: what we know is about the old one.
                self._forget()
                self._created = answer["created"]
            self._window_s = answer["config"].get("duplicate_window", 0) / 1e9
            self._after = after
            if time.monotonic() - self._looked_s > self._window_s / 4:
                self._read_back(answer["state"])
            else:
                self._stored = self._stored.beyond(after)
                self._due_s = self._looked_s + self._window_s / 2
        except BaseException:
            self.close()
            raise

    def _still_open(self) -> dict[str, Any] | None:
        """The stream's state, over the line we have; None if a new one is needed."""
        if self._line is None or self._rows or self._skipped:
            return None
        try:
            return find_stream(self._line, self._stream)
        except SinkUnreachableError:
            return None

    def _look(self) -> dict[str, Any]:
        assert self._line is not None
        answer = find_stream(self._line, self._stream)
        if answer is None:
            raise SinkRefusedError(f"stream {self._stream} is gone")
        return answer

    def _connect(self) -> dict[str, Any]:
        self._hang_up()
        settings = self._settings
        line = self._line = NatsConnection.connect(settings, name=self._name)
        answer = ready(line, settings, pipeline=self._name)
        config = answer["config"]
        self._subjects = Subjects(config["subjects"])
        own = int(config.get("max_msg_size", -1))
        self._limit_bytes = min(line.max_payload, own) if own > 0 else line.max_payload
        if settings.atomic == "transaction":
            self._limit_bytes -= frames.BATCH_FIELDS_BYTES
        self._publisher = Publisher(
            line,
            stream=self._stream,
            max_outstanding=settings.max_outstanding,
            timeout_s=settings.timeout_s,
        )
        return answer

    def _read_back(self, state: dict[str, Any]) -> None:
        assert self._line is not None
        now = time.monotonic()
        self._stored = read_back(self._line, self._place, state, after=self._after)
        self._looked_s, self._due_s = now, math.inf
        if len(self._stored):
            structlog.get_logger().info(
                "nats.resumed",
                stream=self._stream,
                after=str(self._after),
                stored=len(self._stored),
            )

    def write(self, batch: pa.RecordBatch) -> None:
        """Publish what the stream does not hold yet."""
        publisher = self._opened()
        try:
            if time.monotonic() > self._due_s:
                publisher.flush()
                self._read_back(self._look()["state"])
            missing = self._stored.missing(batch)
            self._skipped += batch.num_rows - missing.num_rows
            fit, error = self._fit(missing)
            if fit.num_rows:
                self._note(fit)
                self._publish(publisher, fit)
            if error is not None:
                publisher.flush()
                raise error
        except BaseException:
            self.close()
            raise

    def _publish(self, publisher: Publisher, rows: pa.RecordBatch) -> None:
        if self._settings.atomic == "none":
            publisher.publish(rows)
            return
        for run in self._transactions.take(rows):
            publisher.publish(run.rows, atomic=run.atomic)

    def _note(self, batch: pa.RecordBatch) -> None:
        self._rows += batch.num_rows
        self._bytes += pc.sum(pc.binary_length(batch.column("payload"))).as_py()

    def flush(self) -> Receipt:
        """Wait for every answer."""
        publisher = self._opened()
        try:
            for run in self._transactions.flush():
                publisher.publish(run.rows, atomic=run.atomic)
            publisher.flush()
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
        return receipt

    def close(self) -> None:
        """Let go of the connection; what is not flushed is read back by the next `open`."""
        self._hang_up()
        self._forget()

    def _hang_up(self) -> None:
        line, self._line, self._publisher = self._line, None, None
        self._transactions = Transactions()
        self._rows = self._bytes = self._skipped = self._counted = 0
        if line is not None:
            line.close()

    def _forget(self) -> None:
        self._stored, self._looked_s, self._due_s = ReadBack(), -math.inf, math.inf

    def _opened(self) -> Publisher:
        if self._publisher is None:
            raise SinkUnreachableError(f"the sink of {self._name} is not open")
        return self._publisher

    def _fit(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, SinkError | None]:
        """The rows before the first one that can not be published, and what is wrong with it."""
        ids = batch.column("id")
        found: list[tuple[int, SinkError]] = []
        sizes = frames.header_bytes(ids) + frames.lengths(batch.column("payload"))
        if (large := np.flatnonzero(sizes > self._limit_bytes)).size:
            size = sizes[large[0]]
            reason = f"it has {size} bytes with its header, the limit is {self._limit_bytes}"
            found.append((int(large[0]), PoisonedError(reason)))
        if (broken := frames.broken_id(ids)) is not None:
            found.append((broken, PoisonedError("its id holds a line break")))
        if (unfit := self._subjects.unfit(batch.column("destination"))) is not None:
            found.append(unfit)
        if not found:
            return batch, None
        row, error = min(found, key=lambda pair: pair[0])
        name = ids[row].as_py().decode("utf-8", "replace")
        text = f"message {name!r} cannot go to stream {self._stream}: {error}"
        return batch.slice(0, row), type(error)(text, hint=error.hint)

    def _examine_repeated(self, publisher: Publisher) -> None:
        """Make sure that what the server calls a repetition is one.

        An id is unique in its source only. If the stream has it for another message, of another
        pipeline or another database, the server has dropped ours.
        """
        if publisher.repeated is None or self._line is None:
            return
        (sequence, row), publisher.repeated, publisher.acks.repeated = (
            publisher.repeated,
            None,
            None,
        )
        there = message_at(self._line, self._stream, sequence)
        if not row or there is None or there[0] != sequence:
            return
        name = row["id"].decode("utf-8", "replace")
        if there[1].encode() != row["destination"]:
            raise SinkRefusedError(
                f"stream {self._stream} dropped message {name}: it holds that id under {there[1]}",
                hint="Two pipelines or databases share the stream. Give each a stream of its own.",
            )
        if there[3] != row["payload"]:
            structlog.get_logger().warning(
                "nats.repeated-differently", stream=self._stream, id=name, sequence=sequence
            )
