"""Settings of the sink `redis`: what is refused and why, and names of streams and keys."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from tailrace.change import Op
from tailrace.finding import Severity
from tailrace.sinks.redis.destination import KeyTemplate
from tailrace.sinks.redis.server_check import findings
from tailrace.sinks.redis.settings import RedisSink


def settings(**keys: Any) -> RedisSink:
    return RedisSink.model_validate({"type": "redis", **keys})


FAR = "redis://redis.example.com"


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"url": "http://localhost"}, "must be redis://HOST:PORT"),
        ({"url": "redis://"}, "must be redis://HOST:PORT"),
        ({"url": "rediss://a?ssl_cert_reqs=none"}, "without options"),
        ({"url": "redis://a:99999"}, "must have addresses"),
        ({"url": "redis://a,,b", "cluster": True}, "must have addresses"),
        ({"url": "redis://a,b"}, "several addresses need"),
        ({"url": "redis://a/x"}, "must be redis://HOST:PORT"),
        ({"url": "redis://a/1", "cluster": True}, "no databases"),
        ({"url": "unix:///a", "cluster": True}, "is one server"),
        ({"cluster": True, "sentinel_master": "m"}, "cannot be combined"),
        ({"tls_ca": "ca.crt"}, "need a rediss:// URL"),
        ({"url": "rediss://a", "tls_key": "a.key"}, "must be set together"),
        ({"url": FAR, "password": "x"}, "sent unencrypted"),
        ({"url": "redis://:x@redis.example.com"}, "sent unencrypted"),
        ({"url": FAR, "sentinel_master": "m", "sentinel_password": "x"}, "sent unencrypted"),
        ({"url": "redis://127.0.0.1,10.0.0.1", "cluster": True, "password": "x"}, "unencrypted"),
        ({"user": "ann"}, "needs a `password`"),
        ({"name": "my orders"}, "without blanks"),
        ({"name": ""}, "without blanks"),
        ({"prefix": "a{b}"}, "without blanks and braces"),
        ({"mode": "string", "maxlen": 1}, "for `mode: stream`"),
        ({"mode": "publish", "ids": "position"}, "for `mode: stream`"),
        ({"expire_s": 1}, "for `mode: string`"),
        ({"mode": "string", "expire_s": 0.0001}, "at least 0.001"),
        ({"mode": "string", "name": "{table}:{operation}"}, "need the same `name`"),
    ],
)
def test_invalid_settings(keys: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        settings(**keys)


@pytest.mark.parametrize(
    "keys",
    [
        {"url": "rediss://redis.example.com", "password": "x"},
        {"url": "redis://:x@[::1]:7000/3"},
        {"url": "unix://ann:x@/run/redis.sock"},
        {"url": "redis://localhost", "user": "ann", "password": "x"},
        {"url": "rediss://a,b:7000,[2001:db8::1]:7001", "cluster": True, "password": "x"},
    ],
)
def test_valid_settings(keys: dict[str, Any]) -> None:
    assert settings(**keys).login[1] == "x"


def test_addresses() -> None:
    assert settings().address.hosts == (("127.0.0.1", 6379),)
    found = settings(url="rediss://a,[::1]:7000/12", sentinel_master="m").address
    assert found.hosts == (("a", 26379), ("::1", 7000))
    assert (found.tls, found.database) == (True, 12)
    assert str(found) == "a:26379,::1:7000"
    assert settings(url="redis://a%40b:p%3Aq@localhost").login == ("a@b", "p:q")


def test_secrets_are_not_shown() -> None:
    made = settings(url="rediss://ann:hidden@a", sentinel_master="m", sentinel_password="hidden")
    assert "hidden" not in f"{made!r} {made.address!r} {made.address}"


def test_the_position_is_stored_unless_rows_are_spread() -> None:
    assert settings(mode="string").stores_position
    assert settings(mode="stream", cluster=True).stores_position
    assert not settings(mode="string", cluster=True).stores_position


def test_names() -> None:
    template = KeyTemplate(settings().template, database="shop")
    assert template.fill("public", "orders", Op.DELETE) == "public.orders"
    assert template.fill("my.app", "a:b", Op.INSERT) == "my%2Eapp.a%3Ab"
    assert KeyTemplate("cdc:{table}", database="shop").fill("sales", "a", Op.READ) == "cdc:sales.a"
    state = KeyTemplate(settings(mode="string").template, database="shop")
    assert state.fill("public", "DEL x", Op.INSERT) == "public.DEL%20x"
    assert state.fill("public", "orders", Op.DELETE) == "DEL public.orders"


def test_what_a_server_is_warned_of() -> None:
    durable = {"redis_version": "7.4.1", "maxmemory_policy": "noeviction", "aof_enabled": "1"}
    assert list(findings(settings(), durable)) == []
    assert list(findings(settings(wait_aof=True), durable)) == []
    old = [*findings(settings(wait_aof=True), {**durable, "redis_version": "5.0.14"})]
    assert [each.severity for each in old] == [Severity.WARNING, Severity.WARNING]
    assert "WAITAOF" not in old[0].finding
    volatile = {**durable, "maxmemory_policy": "volatile-lru"}
    assert list(findings(settings(), volatile)) == []
