"""What every sink promises. The columns it is given are `tailrace.message.MESSAGES`.

A sink runs inside a Spark task. `open` comes first and says which position the checkpoint knows to
be delivered; a sink that can read back what it holds skips what an earlier, cut-off attempt has
already stored. `write` may return before anything is durable; `flush` returns once everything
written is, and says so with a `Receipt`. Any error means that nothing since the last `flush` may be
counted on: the same messages, with the same ids, will come again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

    from tailrace.position import Position


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What became durable since the last receipt."""

    messages: int = 0
    bytes: int = 0
    """Payload bytes."""
    duplicates: int = 0
    """Messages the sink had already: skipped by us or refused by it."""


class Sink(Protocol):
    """A destination for messages. Used by one task at a time."""

    def open(self, after: Position) -> None:
        """Connect. Everything up to `after` is known to be delivered."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Take a batch of MESSAGES; may wait when too much is on its way."""

    def flush(self) -> Receipt:
        """Wait until all that was written is durable."""

    def close(self) -> None:
        """Let go of everything, at once; what is not flushed is lost to this sink."""
