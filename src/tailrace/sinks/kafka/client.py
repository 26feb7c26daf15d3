"""Kafka clients configured from the sink's settings.

librdkafka's own log goes to the logger `tailrace.kafka`, which drops it unless the application adds
a handler. Failures that matter become Tailrace errors (`failures`), so nothing is lost with it.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, TypeVar

from confluent_kafka import KafkaException

from tailrace.errors import SinkRefusedError
from tailrace.sinks.kafka.failures import cause

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from confluent_kafka import Producer

    from tailrace.sinks.kafka.failures import Events
    from tailrace.sinks.kafka.settings import Kafka

_Client = TypeVar("_Client")
_LOGGER = logging.getLogger("tailrace.kafka")
_LOGGER.addHandler(logging.NullHandler())
_POLL_S = 0.2


def client_config(settings: Kafka, events: Events, *, name: str) -> dict[str, Any]:
    """The configuration that all clients share. The user's own `settings` win."""
    # librdkafka refuses a transaction timeout that is shorter than a single request's.
    timeout_s = min(settings.timeout_s, settings.transaction_timeout_s)
    return {
        "bootstrap.servers": settings.bootstrap,
        "client.id": f"tailrace-{name}",
        "logger": _LOGGER,
        "error_cb": events,
        "socket.timeout.ms": max(1000, int(timeout_s * 1000)),
        "reconnect.backoff.max.ms": 1000,
        "allow.auto.create.topics": False,
        **_security(settings),
        **settings.settings,
    }


def _security(settings: Kafka) -> dict[str, Any]:
    files = {
        "ssl.ca.location": settings.tls_ca,
        "ssl.certificate.location": settings.tls_certificate,
        "ssl.key.location": settings.tls_key,
    }
    configured = {key: str(path) for key, path in files.items() if path is not None}
    login = {
        "sasl.mechanism": settings.mechanism,
        "sasl.username": settings.user,
        "sasl.password": settings.password.get_secret_value(),
    }
    return {
        "security.protocol": settings.protocol,
        **configured,
        **(login if settings.user else {}),
    }


def create_client(kind: Callable[[dict[str, Any]], _Client], config: dict[str, Any]) -> _Client:
    """A client of this kind; `SinkRefusedError` if librdkafka rejects its configuration."""
    try:
        return kind(config)
    except KafkaException as error:
        reason = cause(error)
        raise SinkRefusedError(
            f"librdkafka refuses a setting: {reason.str() if reason else error}",
            hint="Check `settings` and the `tls_` files of the sink.",
        ) from error


def wait_for_cluster(
    producer: Producer,
    events: Events,
    *,
    bootstrap: str,
    timeout_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Wait until a broker answers; fail early when no broker can be reached or logged in to."""
    deadline = clock() + timeout_s
    while True:
        try:
            # A request for all topics may be large; every cluster has this one.
            producer.list_topics("__consumer_offsets", timeout=min(_POLL_S, timeout_s))
        except KafkaException as error:
            producer.poll(0)
            if events.final or clock() > deadline:
                raise events.translate_error(cause(error), f"Kafka at {bootstrap}") from error
        else:
            events.clear()
            return
