"""The section `sink` of type kafka: what it takes, and what would break its promises."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from tailrace.sinks.kafka.client import base
from tailrace.sinks.kafka.failures import Events
from tailrace.sinks.kafka.settings import KafkaSink


def made(**given: Any) -> KafkaSink:
    return KafkaSink.model_validate({"type": "kafka", **given})


def test_everything_has_a_default() -> None:
    sink = made()
    assert (sink.bootstrap, sink.topic) == ("127.0.0.1:9092", "{database}.{schema}.{table}")
    assert sink.template == sink.topic
    assert not sink.transactional


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"topic": "a b"}, "letters, digits"),
        ({"topic": "{nowhere}"}, "letters, digits"),
        ({"topic": ""}, "letters, digits"),
        ({"prefix": "a b"}, "letters, digits"),
        ({"user": "a"}, "must be set together"),
        ({"password": "a"}, "must be set together"),
        ({"tls_key": "a"}, "must be set together"),
        ({"compression": "best"}, "zstd"),
        ({"settings": {"enable.idempotence": "false"}}, "must stay true"),
        ({"settings": {"acks": "1"}}, "must stay all"),
        ({"settings": {"request.required.acks": "0"}}, "must stay all"),
        ({"settings": {"transactional.id": "mine"}}, "use `prefix` instead"),
        ({"settings": {"message.max.bytes": "5"}}, "use `max_message_bytes` instead"),
        ({"settings": {"on_delivery": "x"}}, "Tailrace needs it"),
        ({"bootstraps": "x"}, "Extra inputs"),
    ],
)
def test_what_is_refused(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        made(**given)


def test_a_password_is_not_shown() -> None:
    assert "s3cret" not in repr(made(user="a", password="s3cret"))


@pytest.mark.parametrize(
    ("given", "protocol"),
    [
        ({}, "PLAINTEXT"),
        ({"tls": True}, "SSL"),
        ({"tls_ca": "/ca.crt"}, "SSL"),
        ({"user": "a", "password": "b"}, "SASL_PLAINTEXT"),
        ({"user": "a", "password": "b", "tls": True}, "SASL_SSL"),
    ],
)
def test_the_protocol_follows_from_what_is_given(given: dict[str, Any], protocol: str) -> None:
    assert base(made(**given), Events(), name="x")["security.protocol"] == protocol


def test_librdkafkas_settings_come_last() -> None:
    settings = {"acks": "all", "socket.timeout.ms": "1234"}
    assert base(made(settings=settings), Events(), name="x")["socket.timeout.ms"] == "1234"
