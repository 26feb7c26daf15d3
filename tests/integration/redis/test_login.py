"""Logins and TLS against a real server; wrong ones are refused, and no error has a password."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tailrace.errors import SinkError, SinkRefusedError
from tailrace.testing import EmbeddedRedis
from tests.integration.redis.bench import Bench

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

USERS = """\
user default off
user tail on >race ~* &* +@all
user few on >few ~* &* +ping
"""
EVERY = "~tailrace:positions:* +ping +client|setname +eval +hmget +hset +hgetall"
RIGHTS = {
    "stream": "~{name}* +type +xadd +xrange",
    "string": "~{name}* +set +del",
    "publish": "&{name}* +publish",
}
"""What docs/guides/redis.md lists."""


@pytest.fixture(scope="module")
def guarded(redis_available: None) -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis(config=USERS) as server:
        yield server


@pytest.fixture(scope="module")
def encrypted(redis_available: None, certificates: Path) -> Iterator[EmbeddedRedis]:
    server = EmbeddedRedis(
        tls_cert_file=f"{certificates}/server.crt",
        tls_key_file=f"{certificates}/server.key",
        tls_ca_cert_file=f"{certificates}/ca.crt",
    )
    server.arguments |= {"tls_port": server.port, "port": 0}
    with server:
        yield server


def refusal(url: str, **keys: Any) -> SinkRefusedError:
    with pytest.raises(SinkRefusedError) as caught:
        Bench(url, **keys).deliver(range(3))
    assert caught.value.hint
    return caught.value


def test_user_and_password(guarded: EmbeddedRedis) -> None:
    assert Bench(guarded.url, user="tail", password="race").deliver(range(3)).messages == 3
    within = guarded.url.replace("//", "//tail:race@")
    assert Bench(within).deliver(range(3)).messages == 3
    for keys in ({"user": "tail", "password": "s3cret"}, {"password": "s3cret"}, {}):
        error = refusal(guarded.url, **keys)
        assert "user" in error.hint
        assert "s3cret" not in f"{error} {error.hint} {error.__cause__!r}"


def test_missing_rights_are_named(guarded: EmbeddedRedis) -> None:
    assert "docs/guides/redis.md" in refusal(guarded.url, user="few", password="few").hint


@pytest.mark.parametrize("mode", RIGHTS)
def test_the_rights_that_the_guide_lists_are_sufficient(guarded: EmbeddedRedis, mode: str) -> None:
    bench = Bench(guarded.url, user=f"r{mode}", password="right", mode=mode)
    admin = Bench(guarded.url.replace("//", "//tail:race@"))
    with admin.client() as client:
        rights = f"{EVERY} {RIGHTS[mode].format(name=bench.name)}"
        client.execute_command("ACL", "SETUSER", f"r{mode}", "on", ">right", *rights.split())
    batch = bench.keyed(range(5))
    assert bench.send(batch).messages == 5
    assert bench.send(batch).duplicates == 5
    elsewhere = Bench(guarded.url, user=f"r{mode}", password="right", mode=mode)
    with pytest.raises(SinkRefusedError):
        elsewhere.send(elsewhere.keyed(range(5)))


def test_tls(encrypted: EmbeddedRedis, certificates: Path) -> None:
    url = f"rediss://localhost:{encrypted.port}"
    own: dict[str, Any] = {
        "tls_ca": certificates / "ca.crt",
        "tls_certificate": certificates / "client.crt",
        "tls_key": certificates / "client.key",
    }
    assert Bench(url, **own).deliver(range(3)).messages == 3
    other = refusal(url, **{**own, "tls_ca": certificates / "other.crt"})
    assert "certificate" in str(other).lower()
    missing = refusal(url, **{**own, "tls_ca": certificates / "none.crt"})
    assert "none.crt cannot be read" in str(missing)


def test_a_client_certificate_is_needed(encrypted: EmbeddedRedis, certificates: Path) -> None:
    bench = Bench(f"rediss://localhost:{encrypted.port}", tls_ca=certificates / "ca.crt")
    # The server refuses the client after the handshake. Its reason may be lost with the connection.
    with pytest.raises(SinkError):
        bench.deliver(range(3))
