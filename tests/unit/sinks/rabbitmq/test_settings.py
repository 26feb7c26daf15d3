"""Settings of the sink `rabbitmq`: what is refused and why, destinations, and errors of AMQP."""

from __future__ import annotations

import ssl
from typing import Any

import pytest
from amqp import exceptions
from pydantic import ValidationError

from tailrace.change import Op
from tailrace.errors import SinkError, SinkFullError, SinkRefusedError, SinkUnreachableError
from tailrace.sinks.rabbitmq.destination import Destination, ExchangeTemplate
from tailrace.sinks.rabbitmq.failures import translate_error
from tailrace.sinks.rabbitmq.settings import RabbitMQSink
from tailrace.sinks.rabbitmq.topology import queue_of

FAR = "amqp://rabbitmq.example.com"


def settings(**keys: Any) -> RabbitMQSink:
    return RabbitMQSink.model_validate({"type": "rabbitmq", **keys})


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"url": "http://localhost"}, "must be amqp://HOST:PORT"),
        ({"url": "amqp://"}, "must be amqp://HOST:PORT"),
        ({"url": "amqps://a?verify=none"}, "without options"),
        ({"url": "amqp://a:99999"}, "must have addresses"),
        ({"url": "amqp://a,,b"}, "must have addresses"),
        ({"url": "amqp://a/b/c"}, "must be amqp://HOST:PORT"),
        ({"tls_ca": "ca.crt"}, "need an amqps:// URL"),
        ({"url": "amqps://a", "tls_key": "a.key"}, "must be set together"),
        ({"url": FAR, "user": "a", "password": "x"}, "sent unencrypted"),
        ({"url": "amqp://a:x@rabbitmq.example.com"}, "sent unencrypted"),
        ({"user": "ann"}, "set together"),
        ({"url": "amqps://a", "mechanism": "EXTERNAL"}, "needs `tls_certificate`"),
        ({"exchange": "a/b"}, "without blanks and slashes"),
        ({"exchange": "", "routing_key": ""}, "needs a `routing_key`"),
        ({"exchange_type": "fanout"}, "`declare: queues` needs"),
        ({"queue_arguments": {"x-queue-type": "classic"}}, "use `queue_type` instead"),
        ({"headers": {"key": "a"}}, "it is the key of the message"),
        ({"headers": {"": "a"}}, "not a valid header"),
        ({"content_type": "x" * 256}, "at most 255 bytes"),
    ],
)
def test_invalid_settings(keys: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        settings(**keys)


def test_addresses() -> None:
    assert settings().address.hosts == (("127.0.0.1", 5672),)
    found = settings(url="amqps://a%40b:p%3Aq@a,[::1]:7000/my%2Fshop")
    assert found.address.hosts == (("a", 5671), ("::1", 7000))
    assert (found.address.tls, found.address.virtual_host) == (True, "my/shop")
    assert found.login == ("a@b", "p:q")
    assert settings().login == ("guest", "guest")
    assert str(found.address) == "a:5671,::1:7000"


def test_secrets_are_not_shown() -> None:
    made = settings(url="amqps://ann:hidden@a", password="hidden")
    assert "hidden" not in f"{made!r} {made.address!r} {made.address}"


def test_destinations() -> None:
    template = ExchangeTemplate(settings(exchange="{database}").template, database="shop")
    assert template.fill("public", "orders", Op.DELETE) == "shop/public.orders"
    assert template.fill("my.app", "a/b", Op.INSERT) == "shop/my%2Eapp.a%2Fb"
    default = ExchangeTemplate(settings(exchange="").template, database="shop")
    assert default.fill("public", "a#*", Op.READ) == "/public.a%23%2A"


@pytest.mark.parametrize("text", [b"", b"/", b"x" * 256, b"e/" + b"x" * 256, b"x" * 256 + b"/k"])
def test_invalid_destinations(text: bytes) -> None:
    assert Destination.parse(text, "") is None


def test_queues_are_named_after_exchange_and_routing_key() -> None:
    assert queue_of(Destination(b"cdc", b"public.orders")) == "cdc.public.orders"
    assert queue_of(Destination(b"", b"orders")) == "orders"


@pytest.mark.parametrize(
    ("error", "kind", "hint"),
    [
        (ConnectionRefusedError("refused"), SinkUnreachableError, ""),
        (TimeoutError("timed out"), SinkUnreachableError, ""),
        (OSError("Server unexpectedly closed connection"), SinkUnreachableError, ""),
        (exceptions.ConnectionForced("shutdown", reply_code=320), SinkUnreachableError, ""),
        (exceptions.NotFound("no exchange 'a'", reply_code=404), SinkUnreachableError, ""),
        (exceptions.InternalError("crash", reply_code=541), SinkUnreachableError, ""),
        (exceptions.ResourceError("memory", reply_code=506), SinkFullError, "limits"),
        (exceptions.AccessRefused("refused", reply_code=403), SinkRefusedError, "permissions"),
        (exceptions.NotAllowed("vhost", reply_code=530), SinkRefusedError, "virtual host"),
        (
            exceptions.PreconditionFailed("inequivalent arg", reply_code=406),
            SinkRefusedError,
            "queue_type",
        ),
        (
            exceptions.PreconditionFailed(
                "message size 9 is larger than configured max size 5", reply_code=406
            ),
            SinkRefusedError,
            "max_message_bytes to at most 5",
        ),
        (ssl.SSLCertVerificationError("unknown CA"), SinkRefusedError, "tls_"),
        (ssl.SSLError("TLSV13_ALERT_CERTIFICATE_REQUIRED"), SinkRefusedError, "tls_"),
    ],
)
def test_errors(error: Exception, kind: type[SinkError], hint: str) -> None:
    made = translate_error(error, "RabbitMQ at localhost:5672")
    assert type(made) is kind
    assert str(made).startswith("RabbitMQ at localhost:5672: ")
    assert hint in made.hint
    assert made.hint
