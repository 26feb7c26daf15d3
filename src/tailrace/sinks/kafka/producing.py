"""What sinks into Kafka share: a publisher, counts, and letting go when something fails."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from tailrace.errors import SinkUnreachableError, TailraceError
from tailrace.sinks.contract import Receipt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.sinks.kafka.publisher import Publisher


class Producing:
    """A sink that opens a publisher and counts what it gave to it. `name` is the pipeline's."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._publisher: Publisher | None = None
        self._rows = self._bytes = self._skipped = 0

    @contextlib.contextmanager
    def _attempt(self) -> Iterator[Publisher]:
        """Work with the publisher. A failure closes the sink, and is raised by its right name."""
        publisher = self._opened()
        try:
            yield publisher
        except TailraceError as error:
            named = publisher.named(error)
            self.close()
            raise named from named.__cause__
        except BaseException:
            self.close()
            raise

    def _opened(self) -> Publisher:
        if self._publisher is None:
            raise SinkUnreachableError(f"the sink of {self._name} is not open")
        return self._publisher

    def _receipt(self) -> Receipt:
        """What was sent since the last one."""
        receipt = Receipt(messages=self._rows, bytes=self._bytes, duplicates=self._skipped)
        self._rows = self._bytes = self._skipped = 0
        return receipt

    def close(self) -> None:
        """Let go of the producer; a transaction that is open is given up."""
        publisher, self._publisher = self._publisher, None
        self._rows = self._bytes = self._skipped = 0
        if publisher is not None:
            publisher.close()
