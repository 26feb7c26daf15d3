"""Exchanges and queues: which exist, and how missing ones are declared. Nothing is ever altered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amqp import NotFound

from tailrace.errors import SinkError, SinkRefusedError
from tailrace.sinks.rabbitmq.connection import Connection
from tailrace.sinks.rabbitmq.destination import Destination
from tailrace.sinks.rabbitmq.failures import translated

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tailrace.sinks.rabbitmq.settings import RabbitMQSink


class Topology:
    """What destinations need, on a channel of its own: an error closes the channel."""

    def __init__(self, connection: Connection, settings: RabbitMQSink) -> None:
        self._where = connection.where
        self._settings = settings
        self._channel = connection.open_channel()
        self._exchanges: set[bytes] = {b""}
        """Those that exist."""

    def forget(self) -> None:
        """Look everything up again."""
        self._exchanges = {b""}

    def prepare(self, destination: Destination) -> SinkError | None:
        """Declare what is missing. Returns why messages cannot be published to it, if they
        cannot."""
        settings = self._settings
        with translated(self._where):
            if destination.exchange not in self._exchanges:
                if not self._exchange_exists(destination.exchange.decode()):
                    return _missing(destination.exchange)
                self._exchanges.add(destination.exchange)
            if settings.declare == "queues":
                self._declare_queue(destination)
        return None

    def _exchange_exists(self, name: str) -> bool:
        """Whether an exchange exists now."""
        settings, channel = self._settings, self._channel
        if self._found(lambda: channel.exchange_declare(name, "", passive=True)):
            return True
        if settings.declare == "none":
            return False
        channel.exchange_declare(name, settings.exchange_type, durable=True, auto_delete=False)
        return True

    def _declare_queue(self, destination: Destination) -> None:
        """Declare the queue of a destination and bind it.

        An existing queue is bound, too: an earlier attempt may have been interrupted.
        """
        settings, channel = self._settings, self._channel
        exchange, key = (name.decode() for name in destination)
        name = queue_of(destination)
        if not self._found(lambda: channel.queue_declare(name, passive=True)):
            arguments: dict[str, Any] = {"x-queue-type": settings.queue_type}
            arguments |= settings.queue_arguments
            channel.queue_declare(name, durable=True, auto_delete=False, arguments=arguments)
        if exchange:
            channel.queue_bind(name, exchange, key)

    @staticmethod
    def _found(declare_passively: Callable[[], object]) -> bool:
        try:
            declare_passively()
        except NotFound:
            return False
        return True


def queue_of(destination: Destination) -> str:
    """The name of the queue that is declared for a destination."""
    exchange, key = (name.decode() for name in destination)
    return f"{exchange}.{key}" if exchange else key


def _missing(exchange: bytes) -> SinkRefusedError:
    return SinkRefusedError(
        f"its exchange {exchange.decode('utf-8', 'replace')!r} does not exist",
        hint="Declare it, or set `declare: exchange`.",
    )


def missing_exchanges(settings: RabbitMQSink, destinations: Sequence[Destination]) -> list[str]:
    """The exchanges that do not exist. Changes nothing, with `declare: none`."""
    connection = Connection(settings, name="check")
    try:
        with connection.lock:
            topology = Topology(connection, settings)
            names = dict.fromkeys(each.exchange for each in destinations)
            return [
                name.decode()
                for name in names
                if topology.prepare(Destination(name, b"")) is not None
            ]
    finally:
        connection.close(polite=True)
