"""A channel in confirm mode: messages out, confirms and returned messages in.

The broker numbers messages from 1 (their *tags*), and confirms one or all up to one. It returns a
message that reaches no queue before it confirms it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tailrace.sinks.outcome import Outcome, Verdict
from tailrace.sinks.rabbitmq.destination import Destination
from tailrace.sinks.rabbitmq.failures import translated
from tailrace.sinks.rabbitmq.frames import Frames

if TYPE_CHECKING:
    import pyarrow as pa
    from amqp import AMQPError, Message

    from tailrace.sinks.rabbitmq.connection import Connection
    from tailrace.sinks.rabbitmq.settings import RabbitMQSink


class Confirm(NamedTuple):
    """The broker has taken responsibility for messages, or not."""

    tag: int
    multiple: bool
    """Whether it is about all messages up to the tag."""
    accepted: bool


class Returned(NamedTuple):
    """A message that reached no queue. Its confirm follows, and says nothing."""

    id: bytes
    destination: Destination
    outcome: Outcome


class Channel:
    """Publishes messages, and collects the answers."""

    def __init__(self, connection: Connection, settings: RabbitMQSink) -> None:
        self._connection = connection
        self._answers: list[Confirm | Returned] = []
        self._next_tag = 1
        channel = connection.open_channel()
        with translated(connection.where):
            channel.confirm_select()
        channel.events["basic_ack"].add(self._ack)
        channel.events["basic_nack"].add(self._nack)
        channel.events["basic_return"].add(self._return)
        self.frames = Frames(settings, channel=channel.channel_id, frame_max=connection.frame_max)

    @property
    def blocked(self) -> bool:
        """Whether the broker takes no messages at present."""
        return self._connection.blocked

    def publish(self, rows: pa.RecordBatch) -> int:
        """Send messages. Returns the tag of the first one."""
        first = self._next_tag
        self._connection.send(self.frames.build(rows))
        self._next_tag += rows.num_rows
        return first

    def receive(self, timeout_s: float) -> list[Confirm | Returned]:
        """Wait for answers, and return all that there are."""
        self._connection.receive(timeout_s)
        self._connection.check_blocked()
        answers, self._answers = self._answers, []
        return answers

    def _ack(self, tag: int, multiple: bool) -> None:
        self._answers.append(Confirm(tag, multiple, accepted=True))

    def _nack(self, tag: int, multiple: bool) -> None:
        self._answers.append(Confirm(tag, multiple, accepted=False))

    def _return(self, error: AMQPError, exchange: str, key: str, message: Message) -> None:
        destination = Destination(exchange.encode(), key.encode())
        name = message.properties.get("message_id", "").encode()
        self._answers.append(Returned(name, destination, _unroutable(error, exchange, key)))


def _unroutable(error: AMQPError, exchange: str, key: str) -> Outcome:
    where = f"exchange {exchange!r}" if exchange else "the default exchange"
    return Outcome(
        verdict=Verdict.REFUSED,
        code=f"AMQP_{error.reply_code}",
        reason=f"{where} has no queue for routing key {key!r}: {error.reply_text}",
        hint="Bind a queue, or set `mandatory: false`, and RabbitMQ drops such messages.",
        response=f"{error.reply_code} {error.reply_text}",
    )
