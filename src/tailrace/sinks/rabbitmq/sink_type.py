"""What Tailrace knows about the sink `rabbitmq`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tailrace.finding import error
from tailrace.sinks.rabbitmq.destination import Destination, ExchangeTemplate
from tailrace.sinks.rabbitmq.settings import RabbitMQSink
from tailrace.sinks.sink_type import Promises, SinkType

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tailrace.finding import Finding
    from tailrace.sinks.contract import Lane, Sink

# ruff: noqa: PLC0415 - py-amqp is an extra, and is loaded where a sink is opened


class RabbitMQType(SinkType[RabbitMQSink]):
    """A message per change, published to an exchange and confirmed by the broker."""

    name = "rabbitmq"
    title = "RabbitMQ"
    settings = RabbitMQSink
    own_headers = re.compile("key")
    promises = Promises(
        delivery="at least once",
        order="per key, within a queue: a key has one message in flight",
        duplicates=(
            "`message_id` is the event id. Messages in flight are sent again if the connection is "
            "lost before their confirms: at most `max_outstanding`."
        ),
        largest_message="`max_message_bytes`, 5 MiB by default; a larger one is parked",
        batch="`max_outstanding` messages without a confirm, 4,000 by default",
    )

    def destination(self, template: str, *, database: str) -> ExchangeTemplate:
        """Fills a template of exchanges and routing keys."""
        return ExchangeTemplate(template, database=database)

    def sends_alone(self, settings: RabbitMQSink) -> bool:
        """It keeps nothing of what it has sent."""
        del settings
        return True

    def open(self, settings: RabbitMQSink, lane: Lane) -> Sink:
        """A connection and its channels."""
        from tailrace.sinks.rabbitmq.sink import RabbitMQ

        return RabbitMQ(settings, lane)

    def probe(self, settings: RabbitMQSink, *, name: str) -> None:
        """The broker must answer and take messages."""
        from tailrace.sinks.rabbitmq.sink import probe

        probe(settings, name=name)

    def check_destinations(
        self, settings: RabbitMQSink, destinations: Sequence[str]
    ) -> Iterator[Finding]:
        """AMQP limits the length of names, and `declare: none` needs exchanges that exist."""
        from tailrace.errors import TailraceError
        from tailrace.sinks.rabbitmq.topology import missing_exchanges

        found = {each: Destination.parse(each.encode(), settings.exchange) for each in destinations}
        for each, parsed in found.items():
            if parsed is None:
                yield error(f"{each} is longer than AMQP allows", "Shorten sink.routing_key.")
        if settings.declare != "none":
            return
        try:
            missing = missing_exchanges(settings, [each for each in found.values() if each])
        except TailraceError:
            # `check` has reported it.
            return
        for name in missing:
            yield error(f"the exchange {name} does not exist", "Declare it, or set sink.declare.")


SINK = RabbitMQType()
