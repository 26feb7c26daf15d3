"""Clients of Kafka as the settings want them.

librdkafka's own log goes to the logger `tailrace.kafka` and no further unless somebody listens
there: whatever matters becomes an error of ours.
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

    from tailrace.config import Kafka
    from tailrace.sinks.kafka.failures import Events

_Made = TypeVar("_Made")
_LOGGER = logging.getLogger("tailrace.kafka")
_LOGGER.addHandler(logging.NullHandler())
_LOOK_S = 0.2


def base(settings: Kafka, events: Events, *, name: str) -> dict[str, Any]:
    """What every client is configured with. The user's own settings come last."""
    # librdkafka wants no request of a transaction to outlast it.
    longest_s = min(settings.timeout_s, settings.transaction_timeout_s)
    return {
        "bootstrap.servers": settings.bootstrap,
        "client.id": f"tailrace-{name}",
        "logger": _LOGGER,
        "error_cb": events,
        "socket.timeout.ms": max(1000, int(longest_s * 1000)),
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
    given = {key: str(path) for key, path in files.items() if path is not None}
    tls = settings.tls or bool(given)
    protocol = ("SASL_" if settings.user else "") + ("SSL" if tls else "PLAINTEXT")
    login = {
        "sasl.mechanism": settings.mechanism,
        "sasl.username": settings.user,
        "sasl.password": settings.password.get_secret_value(),
    }
    return {"security.protocol": protocol, **given, **(login if settings.user else {})}


def made(kind: Callable[[dict[str, Any]], _Made], config: dict[str, Any]) -> _Made:
    """A client; an error of ours if librdkafka does not take its settings."""
    try:
        return kind(config)
    except KafkaException as error:
        found = cause(error)
        raise SinkRefusedError(
            f"librdkafka refuses a setting: {found.str() if found else error}",
            hint="Check `settings` and the `tls_` files of the sink.",
        ) from error


def connected(producer: Producer, events: Events, *, bootstrap: str, timeout_s: float) -> None:
    """Wait for an answer of the cluster, no longer than there is hope."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            # All topics would be many; this one there is on every cluster.
            producer.list_topics("__consumer_offsets", timeout=min(_LOOK_S, timeout_s))
        except KafkaException as error:
            producer.poll(0)
            if events.hopeless or time.monotonic() > deadline:
                raise events.translate_error(cause(error), f"Kafka at {bootstrap}") from error
        else:
            events.clear()
            return
