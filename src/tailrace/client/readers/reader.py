"""What the ordered and the durable reader have in common: start, message and contract."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import nats.js.errors
from nats.js.api import DeliverPolicy

from tailrace.client.connection import missing_stream, translate_errors
from tailrace.client.readers.pull import PullConsumer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from nats.js.api import ConsumerConfig

    from tailrace.client.change import Receipt
    from tailrace.client.connection import Connection

BATCH = 500
"""Messages per request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where a consumer starts: at a sequence, at a time, or at the beginning of the stream."""

    sequence: int | None = None
    time: datetime | None = None

    def settings(self) -> dict[str, object]:
        """The start in a consumer's configuration."""
        if self.sequence is not None:
            return {
                "deliver_policy": DeliverPolicy.BY_START_SEQUENCE,
                "opt_start_seq": self.sequence,
            }
        if self.time is not None:
            return {"deliver_policy": DeliverPolicy.BY_START_TIME, "opt_start_time": self.time}
        return {"deliver_policy": DeliverPolicy.ALL}


@dataclass(frozen=True, slots=True)
class StreamMessage:
    """A message with its sequence in the stream."""

    sequence: int
    data: bytes
    pending: int
    """Messages of the consumer that are in the stream after this one."""
    receipt: Receipt | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    subject: str = ""


class Reader(Protocol):
    """Messages of a stream, in its order."""

    async def next(self) -> list[StreamMessage]:
        """Some messages. An empty list: no message came until the request expired."""
        ...

    async def close(self) -> None:
        """Release the consumer on the server."""
        ...


async def create_consumer(
    connection: Connection, stream: str, settings: ConsumerConfig, batch: int = BATCH
) -> PullConsumer:
    """Create a consumer on the server and subscribe to its messages."""
    with translate_errors(f"read stream {stream}"):
        try:
            info = await connection.jetstream.add_consumer(stream, settings)
        except nats.js.errors.NotFoundError as error:
            raise missing_stream(stream) from error
        consumer = PullConsumer(connection, stream, info.name, batch=batch)
        await consumer.open()
    return consumer
