"""An exchange of its own in a RabbitMQ that others use, and what was delivered to its queues."""

from __future__ import annotations

import contextlib
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple

import amqp

from tailrace.position import ORIGIN
from tailrace.sinks.contract import Lane
from tailrace.sinks.rabbitmq.settings import RabbitMQSink
from tailrace.sinks.rabbitmq.sink import RabbitMQ
from tailrace.sinks.retry import Retry
from tests.unit.sinks.rows import rows, with_column, write
from tests.waiting import LONG_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    import pyarrow as pa

    from tailrace.position import Position
    from tailrace.sinks.contract import Receipt
    from tailrace.testing import EmbeddedRabbitMQ

SOON = Retry(first_s=0.01, max_s=0.1)


class Message(NamedTuple):
    number: int
    id: str
    headers: dict[str, Any]
    properties: dict[str, Any]


class Bench:
    """Sinks of one pipeline, which publish to the exchange `name`; its queue `name.KEY`."""

    def __init__(self, server: EmbeddedRabbitMQ, **keys: Any) -> None:
        self.server = server
        self.name = f"t{uuid.uuid4().hex[:10]}"
        self.keys = keys

    def settings(self, **keys: Any) -> RabbitMQSink:
        given = {"type": "rabbitmq", "url": self.server.url, "timeout_s": LONG_S}
        given |= {"exchange": self.name, "queue_type": "classic"}
        return RabbitMQSink.model_validate(given | self.keys | keys)

    @contextlib.contextmanager
    def opened(
        self,
        after: Position = ORIGIN,
        *,
        folder: Path | None = None,
        retry: Retry = SOON,
        **keys: Any,
    ) -> Iterator[RabbitMQ]:
        lane = Lane(pipeline=self.name, history="one", folder=folder, retry=retry)
        sink = RabbitMQ(self.settings(**keys), lane)
        try:
            sink.open(after)
            yield sink
        finally:
            sink.close()

    def rows(self, numbers: Iterable[int], *, keys: int = 0, to: str = "a") -> pa.RecordBatch:
        """Numbered messages with this routing key, of so many keys; 0: each has its own."""
        chosen = list(numbers)
        batch = rows(chosen, destination=f"{self.name}/{to}".encode())
        return with_column(batch, "key", [b"%d" % (n % keys if keys else n) for n in chosen])

    def deliver(self, numbers: Iterable[int], **given: Any) -> Receipt:
        """Write and flush with a new sink."""
        with self.opened(**given) as sink:
            return send(sink, self.rows(numbers))

    @contextlib.contextmanager
    def channel(self) -> Iterator[Any]:
        with amqp.Connection(f"127.0.0.1:{self.server.port}", login_method="PLAIN") as client:
            channel = client.channel()
            channel.auto_decode = False
            yield channel

    def declare(self, queue: str = "a", arguments: dict[str, Any] | None = None) -> None:
        """An exchange, and a queue that is bound to it with its name."""
        with self.channel() as channel:
            channel.exchange_declare(self.name, "topic", durable=True, auto_delete=False)
            name = f"{self.name}.{queue}"
            channel.queue_declare(name, durable=True, auto_delete=False, arguments=arguments)
            channel.queue_bind(name, self.name, queue)

    def consume(self, queue: str = "a", *, limit: int = 10**9) -> list[Message]:
        """Remove messages from a queue."""
        found: list[Message] = []
        with self.channel() as channel:
            while len(found) < limit:
                message = channel.basic_get(f"{self.name}.{queue}", no_ack=True)
                if message is None:
                    break
                properties = dict(message.properties)
                headers = properties.pop("application_headers")
                number = int(message.body.split(b"\r")[0])
                found.append(Message(number, properties["message_id"], headers, properties))
        return found

    def numbers(self, queue: str = "a") -> list[int]:
        return [each.number for each in self.consume(queue)]


def send(sink: RabbitMQ, batch: pa.RecordBatch) -> Receipt:
    write(sink, batch)
    return sink.flush()
