"""`RequestSink`: what sinks have in common that deliver by requests.

A subclass inspects messages and connects. Everything else is here: the requests of a lane, and the
messages that an earlier attempt of the batch has delivered, which are not sent again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from tailrace.errors import SinkUnreachableError
from tailrace.sinks.requests.acknowledged import Acknowledged
from tailrace.sinks.requests.engine import Requests

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from tailrace.position import Position
    from tailrace.sinks.contract import Lane, Receipt
    from tailrace.sinks.outcome import Outcome
    from tailrace.sinks.requests.limits import Limits


class Receiver(Protocol):
    """Connections to the destination."""

    def send(self, rows: pa.RecordBatch) -> Mapping[int, Outcome]:
        """Send a request. Returns the rows that were not accepted. Called by several threads."""

    def close(self) -> None:
        """Close all connections."""


class RequestSink(ABC):
    """Delivers the messages of a lane. `acknowledged` knows what was accepted."""

    def __init__(self, limits: Limits, lane: Lane) -> None:
        self._limits = limits
        self._lane = lane
        self._skipped = 0
        """Messages that an earlier attempt has delivered, since the last receipt."""
        self._receiver: Receiver | None = None
        self._requests: Requests | None = None
        self.acknowledged = Acknowledged(lane.folder, history=lane.history, lane=lane.number)

    @abstractmethod
    def connect(self) -> Receiver:
        """New connections."""

    @abstractmethod
    def inspect(self, batch: pa.RecordBatch) -> Mapping[int, Outcome]:
        """The rows of a batch of MESSAGES that can never be delivered, and why. Sends nothing."""

    def open(self, after: Position) -> None:
        """Forget what was not flushed. Connections are kept."""
        kept = self._requests is not None and self._requests.idle
        if not kept:
            self.close()
        self._skipped = 0
        try:
            self.acknowledged.open(after)
            if not kept:
                self._connect()
        except BaseException:
            self.close()
            raise

    def _connect(self) -> None:
        self._receiver = self.connect()
        self._requests = Requests(
            self._receiver.send,
            self._limits,
            self._lane.retry,
            acknowledged=self.acknowledged,
            ordered=self._lane.ordered,
            blocks=self._lane.blocks,
        )

    def write(self, batch: pa.RecordBatch) -> None:
        """Send messages."""
        requests = self.require_open()
        try:
            missing = self.acknowledged.missing(batch)
            self._skipped += batch.num_rows - missing.num_rows
            requests.take(missing)
        except BaseException:
            self.close()
            raise

    def flush(self, *, end: bool = True) -> Receipt:
        """Wait for every answer, without `end` only for those that come soon."""
        requests = self.require_open()
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
        receiver, self._receiver = self._receiver, None
        self.acknowledged.close()
        if requests is not None:
            requests.close()
        if receiver is not None:
            receiver.close()

    def require_open(self) -> Requests:
        """The requests of the lane; an error unless the sink is open."""
        if self._requests is None:
            raise SinkUnreachableError(f"the sink of pipeline {self._lane.pipeline} is not open")
        return self._requests
