"""The settings of a Kafka sink, and those refused because they would break its guarantees."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from tailrace.sinks.kafka.client import client_config
from tailrace.sinks.kafka.failures import Events
from tailrace.sinks.kafka.settings import KafkaSink

PLAIN = {"sasl.mechanisms": "PLAIN"}
PLAINTEXT = {"security.protocol": "SASL_PLAINTEXT"}


def settings(**keys: Any) -> KafkaSink:
    return KafkaSink.model_validate({"type": "kafka", **keys})


def test_every_setting_has_a_default() -> None:
    sink = settings()
    assert (sink.bootstrap, sink.topic) == ("127.0.0.1:9092", "{database}.{schema}.{table}")
    assert sink.template == sink.topic
    assert not sink.transactional


@pytest.mark.parametrize(
    ("keys", "reason"),
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
def test_invalid_settings_are_refused(keys: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        settings(**keys)


LOGIN = {"user": "a", "password": "b", "mechanism": "PLAIN"}


@pytest.mark.parametrize(
    ("keys", "allowed"),
    [
        ({"bootstrap": "k1:9092"}, False),
        ({"bootstrap": "127.0.0.1:9092,k1:9092"}, False),
        ({"bootstrap": "10.0.0.7:9092"}, False),
        ({"bootstrap": "localhost.example:9092"}, False),
        ({"bootstrap": "127.0.0.1:9092@k1:9092"}, False),
        ({"bootstrap": "[bad"}, False),
        ({"bootstrap": "k1:9092", "tls": True, "settings": PLAINTEXT}, False),
        ({"bootstrap": "k1:9092", "mechanism": "SCRAM-SHA-512", "settings": PLAIN}, False),
        ({"bootstrap": "k1:9092", "tls": True}, True),
        ({"bootstrap": "k1:9092", "tls_ca": "/ca.crt"}, True),
        ({"bootstrap": "k1:9092", "settings": {"security.protocol": "sasl_ssl"}}, True),
        ({"bootstrap": "k1:9092", "mechanism": "SCRAM-SHA-256"}, True),
        ({"bootstrap": "k1:9092", "user": "", "password": ""}, True),
        ({"bootstrap": "127.0.0.1:9092, localhost:9093,[::1]:9094"}, True),
        ({"bootstrap": "SASL_PLAINTEXT://127.0.0.1:9092"}, True),
    ],
)
def test_a_password_is_not_sent_unencrypted(keys: dict[str, Any], allowed: bool) -> None:
    given = LOGIN | keys
    if allowed:
        assert settings(**given).bootstrap == given["bootstrap"]
        return
    with pytest.raises(ValidationError, match="mechanism PLAIN would send the password") as caught:
        settings(**given)
    assert "tls: true" in str(caught.value)


def test_a_password_is_not_shown() -> None:
    assert "s3cret" not in repr(settings(user="a", password="s3cret"))


@pytest.mark.parametrize(
    ("keys", "protocol"),
    [
        ({}, "PLAINTEXT"),
        ({"tls": True}, "SSL"),
        ({"tls_ca": "/ca.crt"}, "SSL"),
        ({"user": "a", "password": "b"}, "SASL_PLAINTEXT"),
        ({"user": "a", "password": "b", "tls": True}, "SASL_SSL"),
    ],
)
def test_the_protocol_follows_from_login_and_tls(keys: dict[str, Any], protocol: str) -> None:
    assert client_config(settings(**keys), Events(), name="x")["security.protocol"] == protocol


def test_settings_of_librdkafka_win() -> None:
    own = {"acks": "all", "socket.timeout.ms": "1234"}
    assert client_config(settings(settings=own), Events(), name="x")["socket.timeout.ms"] == "1234"


def test_settings_of_librdkafka_are_not_shown() -> None:
    assert "s3cret" not in repr(settings(settings={"ssl.key.password": "s3cret"}))
