"""`RabbitMQ`: the sink. A message counts once the broker has confirmed it.

Many messages are in flight, and never two of one key (`outbox`). What is confirmed is noted at
once, and a replay of the batch skips it. If the connection is lost, messages in flight may have
arrived, and are sent again: with the same `message_id`, by which a consumer recognises them.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from tailrace.errors import PoisonedError, SinkError, SinkUnreachableError
from tailrace.sinks.outcome import Outcome
from tailrace.sinks.rabbitmq.channel import Channel
from tailrace.sinks.rabbitmq.connection import Connection
from tailrace.sinks.rabbitmq.destination import Destination
from tailrace.sinks.rabbitmq.outbox import Limits, Outbox
from tailrace.sinks.rabbitmq.topology import Topology
from tailrace.sinks.requests.acknowledged import Acknowledged
from tailrace.sinks.requests.doubts import Doubts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from numpy.typing import NDArray

    from tailrace.position import Position
    from tailrace.sinks.contract import Lane, Receipt
    from tailrace.sinks.rabbitmq.settings import RabbitMQSink

_FIT_KEPT = 100_000
_LONGEST_ID = 255


class RabbitMQ:
    """Publishes the messages of a lane."""

    def __init__(self, settings: RabbitMQSink, lane: Lane) -> None:
        self._settings = settings
        self._lane = lane
        self._acknowledged = Acknowledged(lane.folder, history=lane.history, lane=lane.number)
        self._doubts = Doubts(lane)
        self._skipped = 0
        """Messages that an earlier attempt has delivered, since the last receipt."""
        self._open: _Open | None = None

    def open(self, after: Position) -> None:
        """Connect, unless the connection is still there."""
        if self._open is None or not self._open.usable():
            self.close()
        # After `close`, which closes their files.
        self._acknowledged.open(after)
        self._doubts.open(after)
        self._skipped = 0
        if self._open is None:
            self._open = _Open(self._settings, self._lane, self._acknowledged, self._doubts)

    def inspect(self, batch: pa.RecordBatch) -> Mapping[int, Outcome]:
        """The rows that are too large, and those without a valid destination."""
        with self._attempt() as opened:
            errors: dict[int, SinkError] = {}
            for reason, rows in opened.unfit_destinations(batch.column("destination")):
                errors.update(dict.fromkeys(rows, reason))
            errors.update(opened.unfit_sizes(batch))
            # The broker may have a message that would be refused today.
            known = self._acknowledged.known(batch) if errors else None
            return {
                row: Outcome.refused(error)
                for row, error in errors.items()
                if known is None or not known[row]
            }

    def write(self, batch: pa.RecordBatch) -> None:
        """Send messages."""
        with self._attempt() as opened:
            missing = self._acknowledged.missing(batch)
            self._skipped += batch.num_rows - missing.num_rows
            opened.outbox.take(missing)

    def flush(self, *, end: bool = True) -> Receipt:
        """Wait for every confirm, without `end` only for those that come soon."""
        with self._attempt() as opened:
            receipt = opened.outbox.flush(end=end)
            skipped, self._skipped = self._skipped, 0
            return replace(receipt, duplicates=skipped)

    def close(self) -> None:
        """Close the connection. Messages without a confirm may have arrived."""
        opened, self._open = self._open, None
        self._acknowledged.close()
        self._doubts.close()
        if opened is not None:
            opened.close()

    @contextlib.contextmanager
    def _attempt(self) -> Iterator[_Open]:
        """Use the connection. Any failure closes the sink."""
        opened = self._open
        if opened is None:
            raise SinkUnreachableError(f"the sink of pipeline {self._lane.pipeline} is not open")
        try:
            with opened.connection.lock:
                yield opened
        except BaseException as error:
            self.close()
            if isinstance(error, SinkUnreachableError) and opened.connection.blocked:
                # A broker that blocks publishers reads nothing, and so answers nothing.
                raise opened.connection.refusal() from error
            raise


class _Open:
    """What a sink has while it is connected."""

    def __init__(
        self, settings: RabbitMQSink, lane: Lane, acknowledged: Acknowledged, doubts: Doubts
    ) -> None:
        self._settings = settings
        self.connection = Connection(settings, name=lane.pipeline)
        try:
            with self.connection.lock:
                self.connection.check_takes_messages()
                self._topology = Topology(self.connection, settings)
                self._channel = Channel(self.connection, settings)
        except BaseException:
            self.connection.close(polite=False)
            raise
        self.outbox = Outbox(
            self._channel,
            Limits(
                rows=settings.max_outstanding,
                bytes=settings.max_outstanding_bytes,
                timeout_s=settings.timeout_s,
            ),
            lane.retry,
            acknowledged=acknowledged,
            doubts=doubts,
            exchange=settings.exchange,
            ordered=lane.ordered,
            blocks=lane.blocks,
        )
        self._fit: set[bytes] = set()
        """Destinations that can be published to."""

    def usable(self) -> bool:
        """Whether everything is confirmed, and the connection is there."""
        if not self.outbox.idle:
            return False
        self._fit.clear()
        self._topology.forget()
        try:
            with self.connection.lock:
                self._channel.receive(0)
        except SinkError:
            return False
        return True

    def unfit_destinations(
        self, destinations: pa.BinaryArray
    ) -> Iterator[tuple[SinkError, list[int]]]:
        """Why rows have no valid destination."""
        if len(self._fit) > _FIT_KEPT:
            self._fit.clear()
        for each in pc.unique(destinations).to_pylist():
            if each in self._fit:
                continue
            error = self._prepare(each)
            if error is None:
                self._fit.add(each)
            else:
                yield error, pc.indices_nonzero(pc.equal(destinations, each)).to_pylist()

    def _prepare(self, text: bytes) -> SinkError | None:
        destination = Destination.parse(text, self._settings.exchange)
        if destination is not None:
            return self._topology.prepare(destination)
        shown = text[:300].decode("utf-8", "replace")
        return PoisonedError(
            f"its destination {shown!r} is not an exchange and a routing key",
            hint="A route gives EXCHANGE/ROUTING_KEY, of at most 255 bytes each.",
        )

    def unfit_sizes(self, batch: pa.RecordBatch) -> Iterator[tuple[int, SinkError]]:
        """Rows that are too large, and why."""
        limit = self._settings.max_message_bytes
        sizes = pc.binary_length(batch.column("payload")).to_numpy()
        for row in np.flatnonzero(sizes > limit).tolist():
            yield (
                row,
                PoisonedError(
                    f"it has {sizes[row]} bytes, max_message_bytes is {limit}",
                    hint="Raise max_message_bytes, or exclude large columns.",
                ),
            )
        ids: NDArray[np.int32] = pc.binary_length(batch.column("id")).to_numpy()
        for row in np.flatnonzero(ids > _LONGEST_ID).tolist():
            yield row, PoisonedError(f"its id has {ids[row]} bytes, AMQP allows {_LONGEST_ID}")
        frames = self._channel.frames
        headers = frames.header_bytes(batch)
        for row in np.flatnonzero(headers > frames.header_max).tolist():
            yield (
                row,
                PoisonedError(
                    f"its properties have {headers[row]} bytes, a frame has {frames.header_max}",
                    hint="Set a shorter `key`, or raise frame_max of the broker.",
                ),
            )

    def close(self) -> None:
        """Close the connection."""
        self.connection.close(polite=self.outbox.idle and not self.connection.blocked)


def probe(settings: RabbitMQSink, *, name: str) -> None:
    """Fail unless the broker answers and takes messages."""
    connection = Connection(settings, name=name)
    try:
        with connection.lock:
            connection.check_takes_messages()
    finally:
        connection.close(polite=not connection.blocked)
