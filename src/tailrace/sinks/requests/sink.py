"""`RequestSink`: what all sinks of requests do in the same way.

A sink inspects messages before they are sent, skips those that an earlier attempt has delivered,
and leaves requests, retries and outcomes to the engine. A kind of sink adds its connection, how a
request is sent over it, and which destinations it takes.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import numpy as np
import pyarrow.compute as pc

from tailrace.errors import PoisonedError, SinkUnreachableError
from tailrace.sinks.outcome import Outcome
from tailrace.sinks.requests.acknowledged import Acknowledged
from tailrace.sinks.requests.doubts import Doubts
from tailrace.sinks.requests.engine import Requests

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa
    from numpy.typing import NDArray

    from tailrace.position import Position
    from tailrace.sinks.contract import Lane, Receipt
    from tailrace.sinks.requests.settings import RequestSettings


class Connection(Protocol):
    """What requests are sent over, by several threads."""

    def close(self) -> None:
        """Send no more."""


C = TypeVar("C", bound=Connection)


class RequestSink(ABC, Generic[C]):
    """Sends the messages of one lane."""

    answers_per_message: bool = False
    """Whether a request may be accepted in part. A key is in such a request at most once."""
    one_key: bool = False
    """Whether the destination takes messages of one key in a request only."""

    def __init__(self, settings: RequestSettings, lane: Lane) -> None:
        self._request_settings = settings
        self._lane = lane
        self._acknowledged = Acknowledged(lane.folder, history=lane.history, lane=lane.number)
        self._doubts = Doubts(lane)
        self.clock: Callable[[], float] = time.monotonic
        """By which requests wait. Tests set another one before they open the sink."""
        self._skipped = 0
        """Messages that an earlier attempt has delivered, since the last receipt."""
        self._connection: C | None = None
        self._requests: Requests | None = None

    @abstractmethod
    def connect(self) -> C:
        """A connection, or what makes connections when they are needed."""

    @abstractmethod
    def send(self, connection: C, rows: pa.RecordBatch) -> Mapping[int, Outcome]:
        """Send a request. Returns the messages that were not accepted, and why."""

    def resource(self, destination: str) -> str:
        """The part of a destination that errors name, and that has to exist."""
        return destination

    def flaw_of(self, destination: bytes) -> PoisonedError | None:
        """Why a destination can never take a message; None if it may."""
        del destination
        return None

    def sizes_of(self, batch: pa.RecordBatch) -> NDArray[np.integer]:
        """The bytes of each message that count for `max_message_bytes`."""
        sizes: NDArray[np.integer] = pc.binary_length(batch.column("payload")).to_numpy()
        return sizes

    def open(self, after: Position) -> None:
        """Forget what was not flushed. Connections are made when they are needed, and kept."""
        try:
            if self._requests is None or not self._requests.idle:
                self.close()
                self._connection = self.connect()
                self._requests = self._engine(self._connection)
            # After `close`, which closes their files.
            self._acknowledged.open(after)
            self._doubts.open(after)
        except BaseException:
            self.close()
            raise
        self._skipped = 0

    def _engine(self, connection: C) -> Requests:
        distinct = self.answers_per_message and self._lane.ordered
        return Requests(
            partial(self.send, connection),
            replace(self._request_settings.limits, distinct=distinct, one_key=self.one_key),
            self._lane.retry,
            acknowledged=self._acknowledged,
            doubts=self._doubts,
            ordered=self._lane.ordered,
            blocks=self._lane.blocks,
            clock=self.clock,
        )

    def inspect(self, batch: pa.RecordBatch) -> Mapping[int, Outcome]:
        """The rows that can never be delivered, and why."""
        self._require_open()
        errors = self.flaws(batch)
        # The receiver may have a message that would be refused today.
        known = self._acknowledged.known(batch) if errors else None
        return {
            row: Outcome.refused(error)
            for row, error in sorted(errors.items())
            if known is None or not known[row]
        }

    def flaws(self, batch: pa.RecordBatch) -> Mapping[int, PoisonedError]:
        """The rows that are too large, and those whose destination is invalid."""
        errors: dict[int, PoisonedError] = {}
        for destination in pc.unique(batch.column("destination")).to_pylist():
            flaw = self.flaw_of(destination)
            if flaw is not None:
                same = pc.equal(batch.column("destination"), destination)
                errors.update(dict.fromkeys(pc.indices_nonzero(same).to_pylist(), flaw))
        limit = self._request_settings.max_message_bytes
        sizes = self.sizes_of(batch)
        for row in np.flatnonzero(sizes > limit).tolist():
            errors[row] = PoisonedError(
                f"it has {sizes[row]} bytes, max_message_bytes is {limit}",
                hint="Raise max_message_bytes, or exclude large columns.",
            )
        return errors

    def write(self, batch: pa.RecordBatch) -> None:
        """Send messages."""
        requests = self._require_open()
        try:
            missing = self._acknowledged.missing(batch)
            self._skipped += batch.num_rows - missing.num_rows
            requests.take(missing)
        except BaseException:
            self.close()
            raise

    def flush(self, *, end: bool = True) -> Receipt:
        """Wait for every answer, without `end` only for those that come soon."""
        requests = self._require_open()
        try:
            receipt = requests.flush(end=end)
        except BaseException:
            self.close()
            raise
        skipped, self._skipped = self._skipped, 0
        return replace(receipt, duplicates=skipped)

    def close(self) -> None:
        """Close all connections. Messages without an answer may have arrived."""
        requests, self._requests = self._requests, None
        connection, self._connection = self._connection, None
        self._acknowledged.close()
        self._doubts.close()
        if requests is not None:
            requests.close()
        if connection is not None:
            connection.close()

    def _require_open(self) -> Requests:
        if self._requests is None:
            raise SinkUnreachableError(f"the sink of pipeline {self._lane.pipeline} is not open")
        return self._requests


def invalid_destination(destination: bytes, valid: str) -> PoisonedError:
    """The flaw of a destination that is not what the receiver calls valid."""
    shown = destination.decode("utf-8", "replace")
    return PoisonedError(
        f"its destination {shown[:200]!r} is not {valid}",
        hint="Change `route`, or the name in the settings of the sink.",
    )
