"""`JetStream`: the sink. One connection, one stream, messages in order and without duplicates.

JetStream drops a message whose id it has stored within the stream's duplicate window. The window is
a few minutes, a checkpoint may be older. Therefore `open` reads back the ids that the stream holds
beyond the checkpoint, and `write` skips them. Only messages of this history of the database count
(`claim`).

A sink that stays open need not read back before every batch: the server itself drops whatever
another process has stored since the last read-back, as long as that is younger than the window.
The schedule, with a window of 120 s:

| time since the last read-back | `open`                               | `write`                   |
|-------------------------------|--------------------------------------|---------------------------|
| up to 30 s (a quarter)        | keeps the ids that it knows          | reads back after 60 s     |
| more                          | reads back                           | never reads back          |
"""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc
import structlog

from tailrace.errors import DivergedError, PoisonedError, SinkRefusedError, SinkUnreachableError
from tailrace.jetstream.bulk import frames
from tailrace.jetstream.bulk.atomic_batches import Transactions
from tailrace.jetstream.bulk.publisher import Publisher
from tailrace.jetstream.bulk.read_back import OwnMessages, ReadBack, message_at, read_back
from tailrace.jetstream.claim import Claim
from tailrace.jetstream.connection import NatsConnection
from tailrace.jetstream.quorum import await_quorum
from tailrace.jetstream.stream import find_stream, ready
from tailrace.jetstream.subjects import Subjects
from tailrace.position import ORIGIN
from tailrace.sinks.contract import Receipt
from tailrace.sinks.nats.claim import ensure, shared
from tailrace.sinks.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    import pyarrow as pa

    from tailrace.errors import SinkError
    from tailrace.position import Position
    from tailrace.sinks.contract import Lane
    from tailrace.sinks.nats.settings import NatsSink


class JetStream:
    """Publishes messages to a JetStream stream.

    `subjects` is a pattern of all subjects that this pipeline publishes to.
    """

    def __init__(
        self,
        settings: NatsSink,
        lane: Lane,
        *,
        subjects: str = ">",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._own = OwnMessages(settings.stream.name, subjects, lane.owner)
        self._lane = lane
        self._name = lane.pipeline
        self._clock = clock
        self._stream = settings.stream.name
        self._transactions = Transactions()
        self._line: NatsConnection | None = None
        self._publisher: Publisher | None = None
        self._subjects = Subjects(())
        self._limit_bytes = 0
        self._created = ""
        self._claim = Claim()
        self._stored = ReadBack()
        self._read_back_at_s = -math.inf
        """When the sink last read back."""
        self._window_s = 0.0
        self._after = ORIGIN
        self._read_back_due_s = math.inf
        """When to read back in the middle of a batch, if `open` did not."""
        self._rows = self._bytes = self._skipped = self._counted = 0

    def open(self, after: Position) -> None:
        """Connect, ensure that the stream exists, and read back what it holds beyond `after`."""
        try:
            info = self._open_stream_info() or self._connect()
            if info["created"] != self._created:
                # The stream was deleted and created again: the known ids are of the old one.
                self._forget()
                self._created = info["created"]
            assert self._line is not None
            assert self._publisher is not None
            self._learn_limits(self._line, info["config"])
            subjects = self._own.subjects
            self._claim = ensure(self._line, info, self._lane, after=after, subjects=subjects)
            self._own = replace(self._own, shared=shared(info, self._lane, subjects))
            self._publisher.fields = self._own.fields
            self._window_s = info["config"].get("duplicate_window", 0) / 1e9
            self._after = after
            if self._clock() - self._read_back_at_s > self._window_s / 4:
                self._read_back(info["state"])
            else:
                self._stored = self._stored.beyond(after)
                self._read_back_due_s = self._read_back_at_s + self._window_s / 2
        except BaseException:
            self.close()
            raise

    def _open_stream_info(self) -> dict[str, Any] | None:
        """The stream's info over the open connection; None if a new connection is needed."""
        if self._line is None or self._rows or self._skipped:
            return None
        try:
            return find_stream(self._line, self._stream)
        except SinkUnreachableError:
            return None

    def _stream_info(self) -> dict[str, Any]:
        assert self._line is not None
        answer = find_stream(self._line, self._stream)
        if answer is None:
            raise SinkRefusedError(f"stream {self._stream} has been deleted")
        return answer

    def _connect(self) -> dict[str, Any]:
        self._disconnect()
        settings = self._settings
        line = self._line = NatsConnection.connect(settings, name=self._name)
        answer = ready(line, settings, pipeline=self._name)
        answer = await_quorum(line, answer, timeout_s=settings.timeout_s)
        self._publisher = Publisher(
            line,
            stream=self._stream,
            max_outstanding=settings.max_outstanding,
            timeout_s=settings.timeout_s,
        )
        return answer

    def _learn_limits(self, line: NatsConnection, config: dict[str, Any]) -> None:
        """What the stream takes. It may have been changed since the last batch."""
        self._subjects = Subjects(config["subjects"])
        stream_limit = int(config.get("max_msg_size", -1))
        self._limit_bytes = (
            min(line.max_payload, stream_limit) if stream_limit > 0 else line.max_payload
        )
        if self._settings.atomic == "transaction":
            self._limit_bytes -= frames.BATCH_FIELDS_BYTES

    def _read_back(self, state: dict[str, Any]) -> None:
        assert self._line is not None
        now = self._clock()
        first = max(int(state["first_seq"]), self._claim.after + 1)
        bounds = (first, int(state["last_seq"]))
        self._stored = read_back(self._line, self._own, bounds, after=self._after)
        self._read_back_at_s, self._read_back_due_s = now, math.inf
        if len(self._stored):
            structlog.get_logger().info(
                "nats.resumed",
                stream=self._stream,
                after=str(self._after),
                stored=len(self._stored),
            )

    def inspect(self, batch: pa.RecordBatch) -> Mapping[int, Outcome]:
        """The rows that no server or this stream does not take."""
        self._require_open()
        ids = batch.column("id")
        errors: dict[int, SinkError] = self._subjects.unfit(batch.column("destination"))
        for row in frames.broken_ids(ids):
            errors[row] = PoisonedError("its id contains a line break")
        header = frames.header_bytes(batch) + len(self._own.fields)
        sizes = header + frames.lengths(batch.column("payload"))
        for row in np.flatnonzero(sizes > self._limit_bytes).tolist():
            errors[row] = PoisonedError(
                f"it has {sizes[row]} bytes with its header, the limit is {self._limit_bytes}",
                hint="Raise max_payload of the server and max_msg_size of the stream, or exclude "
                "large columns.",
            )
        # The stream may hold a message that it would not take today.
        return {
            row: Outcome.refused(error)
            for row, error in errors.items()
            if self._stored.missing(batch.slice(row, 1)).num_rows
        }

    def write(self, batch: pa.RecordBatch) -> None:
        """Publish the rows that the stream does not hold yet."""
        with self._attempt() as publisher:
            if self._clock() > self._read_back_due_s:
                publisher.flush()
                self._read_back(self._stream_info()["state"])
            missing = self._stored.missing(batch)
            self._skipped += batch.num_rows - missing.num_rows
            if missing.num_rows:
                self._count(missing)
                self._publish(publisher, missing)

    @contextlib.contextmanager
    def _attempt(self) -> Iterator[Publisher]:
        """Use the publisher. Any failure closes the sink."""
        publisher = self._require_open()
        try:
            yield publisher
        except PoisonedError as error:
            try:
                if not self._takes_less():
                    raise
            finally:
                self.close()
            # It has passed `inspect`. A replay finds it there.
            raise SinkUnreachableError(f"{error}; it took more when the batch began") from error
        except BaseException:
            self.close()
            raise

    def _takes_less(self) -> bool:
        """Whether the stream takes less than when the batch began."""
        assert self._line is not None
        before = self._limit_bytes
        self._learn_limits(self._line, self._stream_info()["config"])
        return self._limit_bytes < before

    def _publish(self, publisher: Publisher, rows: pa.RecordBatch) -> None:
        if self._settings.atomic == "none":
            publisher.publish(rows)
            return
        for run in self._transactions.take(rows):
            publisher.publish(run.rows, atomic=run.atomic)

    def _count(self, batch: pa.RecordBatch) -> None:
        self._rows += batch.num_rows
        self._bytes += pc.sum(pc.binary_length(batch.column("payload"))).as_py()

    def flush(self, *, end: bool = True) -> Receipt:
        """Wait until the server has acknowledged every message."""
        del end
        with self._attempt() as publisher:
            for run in self._transactions.flush():
                publisher.publish(run.rows, atomic=run.atomic)
            publisher.flush()
            self._check_duplicates(publisher)
        dropped = publisher.acks.duplicates - self._counted
        receipt = Receipt(
            messages=self._rows - dropped,
            bytes=self._bytes,
            duplicates=self._skipped + dropped,
        )
        self._counted = publisher.acks.duplicates
        self._rows = self._bytes = self._skipped = 0
        return receipt

    def close(self) -> None:
        """Close the connection; the next `open` reads back messages that were not flushed."""
        self._disconnect()
        self._forget()

    def _disconnect(self) -> None:
        line, self._line, self._publisher = self._line, None, None
        self._transactions = Transactions()
        self._rows = self._bytes = self._skipped = self._counted = 0
        if line is not None:
            line.close()

    def _forget(self) -> None:
        self._stored = ReadBack()
        self._read_back_at_s, self._read_back_due_s = -math.inf, math.inf

    def _require_open(self) -> Publisher:
        if self._publisher is None:
            raise SinkUnreachableError(f"the sink of pipeline {self._name} is not open")
        return self._publisher

    def _check_duplicates(self, publisher: Publisher) -> None:
        """Fail if the server dropped a message as a duplicate of a different message.

        An id is unique within its source only. If the stream holds the id for a message of another
        pipeline or another database, the server has dropped this pipeline's message.
        """
        repeated, publisher.repeated = publisher.repeated, []
        for sequence, row in repeated:
            assert self._line is not None
            stored = message_at(self._line, self._stream, sequence)
            if not row or stored is None or stored.sequence != sequence:
                continue
            name = row["id"].decode("utf-8", "replace")
            if stored.subject.encode() != row["destination"]:
                raise SinkRefusedError(
                    f"stream {self._stream} dropped message {name}: it holds that id under "
                    f"{stored.subject}",
                    hint="Two pipelines or databases share the stream. Configure one stream for "
                    "each.",
                )
            if stored.payload != row["payload"]:
                raise DivergedError(
                    f"stream {self._stream} dropped message {name}: it holds another message with "
                    f"that id, number {sequence}",
                    hint="Another database or pipeline publishes to the stream. Configure one "
                    "stream for each.",
                )
