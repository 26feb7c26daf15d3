"""A batch that waits to be written, and the outcome of writing it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

    from tailrace.broker.limits import Reservation
    from tailrace.broker.tables.catalog import Topic
    from tailrace.broker.tables.records import Batch

PartitionKey = tuple[int, int]
"""A topic's id and a partition number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteResult:
    """The offset of a written batch, or the name of Kafka's error code."""

    offset: int = -1
    fresh: bool = False
    """Whether this transaction wrote it; False for a batch that was written before."""
    error: str = ""
    message: str = ""


@dataclass(slots=True, kw_only=True, eq=False)
class PendingBatch:
    """A batch that waits to be written."""

    topic: Topic
    partition: int
    batch: Batch
    data: bytes
    """The bytes as sent; empty if the records were changed since."""
    done: asyncio.Future[WriteResult]
    memory: Reservation
    """The memory of its request, which is held until all batches of the request are done."""
    deadline: float = math.inf
    """The clock's time until which the producer waits."""

    @property
    def key(self) -> PartitionKey:
        """The partition it belongs to."""
        return self.topic.id, self.partition
