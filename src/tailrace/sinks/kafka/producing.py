"""What the sinks into Kafka share: one publisher, the counts of a receipt, and closing on failure.

The subclasses are `sink.Kafka` and the broker's shadow.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from tailrace.errors import SinkUnreachableError, TailraceError
from tailrace.sinks.contract import Receipt

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

    from tailrace.sinks.kafka.publisher import Publisher
    from tailrace.sinks.outcome import Outcome


class ProducerSink:
    """A sink that owns a publisher and counts its messages. `name` is the pipeline's."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._publisher: Publisher | None = None
        self._rows = self._bytes = self._skipped = 0

    @contextlib.contextmanager
    def _attempt(self) -> Iterator[Publisher]:
        """Use the publisher. Any failure closes the sink: the contract says what that means."""
        publisher = self._require_open()
        try:
            yield publisher
        except TailraceError as error:
            try:
                explained = self.explain(publisher, error)
            finally:
                self.close()
            raise explained from explained.__cause__
        except BaseException:
            self.close()
            raise

    def explain(self, publisher: Publisher, error: TailraceError) -> TailraceError:
        """The error that a failure of the publisher means."""
        return publisher.explain(error)

    def inspect(self, batch: pa.RecordBatch) -> Mapping[int, Outcome]:
        """No row is refused before it is sent."""
        del batch
        return {}

    def _require_open(self) -> Publisher:
        if self._publisher is None:
            raise SinkUnreachableError(f"the sink of pipeline {self._name} is not open")
        return self._publisher

    def _receipt(self) -> Receipt:
        """The counts since the last receipt."""
        receipt = Receipt(messages=self._rows, bytes=self._bytes, duplicates=self._skipped)
        self._rows = self._bytes = self._skipped = 0
        return receipt

    def close(self) -> None:
        """Close the producer and abort its open transaction."""
        publisher, self._publisher = self._publisher, None
        self._rows = self._bytes = self._skipped = 0
        if publisher is not None:
            publisher.close()
