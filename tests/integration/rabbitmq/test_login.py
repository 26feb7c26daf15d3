"""Logins and TLS against a real broker; wrong ones are refused, and no error has a password."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tailrace.errors import SinkError, SinkRefusedError
from tailrace.testing import EmbeddedRabbitMQ
from tests.integration.rabbitmq.bench import Bench

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.long

MECHANISMS = """\
auth_mechanisms.1 = PLAIN
auth_mechanisms.2 = EXTERNAL
ssl_cert_login_from = common_name
"""


@pytest.fixture(scope="module")
def guarded(rabbitmq_available: None, certificates: Path) -> Iterator[EmbeddedRabbitMQ]:
    plugins = ("rabbitmq_auth_mechanism_ssl",)
    server = EmbeddedRabbitMQ(config=MECHANISMS, tls=certificates, plugins=plugins)
    with server:
        for user in ("tail", "few"):
            server.control("add_user", user, "race")
        server.control("add_vhost", "my/shop")
        everything = (".*", ".*", ".*")
        server.control("set_permissions", "-p", "/", "tail", *everything)
        server.control("set_permissions", "-p", "my/shop", "tail", *everything)
        server.control("set_permissions", "-p", "/", "few", "^$", "^allowed$", ".*")
        yield server


def refusal(bench: Bench, **keys: Any) -> SinkRefusedError:
    with pytest.raises(SinkRefusedError) as caught:
        bench.deliver(range(3), **keys)
    assert caught.value.hint
    assert "s3cret" not in f"{caught.value} {caught.value.hint} {caught.value.__cause__!r}"
    return caught.value


def test_user_and_password(guarded: EmbeddedRabbitMQ) -> None:
    bench = Bench(guarded)
    assert bench.deliver(range(3), user="tail", password="race").messages == 3
    within = guarded.url.replace("//", "//tail:race@")
    assert bench.deliver(range(3, 6), url=within).messages == 3
    assert bench.numbers() == [0, 1, 2, 3, 4, 5]
    assert "user" in refusal(bench, user="tail", password="s3cret").hint


def test_virtual_hosts(guarded: EmbeddedRabbitMQ) -> None:
    bench = Bench(guarded, user="tail", password="race")
    assert bench.deliver(range(3), virtual_host="my/shop").messages == 3
    assert bench.deliver(range(3), url=f"{guarded.url}/my%2Fshop").messages == 3
    assert "virtual host" in refusal(bench, virtual_host="missing").hint
    denied = refusal(bench, user="few", password="race", virtual_host="my/shop")
    assert "permission" in denied.hint


def test_missing_permissions_are_named(guarded: EmbeddedRabbitMQ) -> None:
    """GIVEN a user who may write to no exchange THEN the error names it; the user needs no right on
    the default exchange."""
    bench = Bench(guarded)
    bench.declare()
    error = refusal(bench, user="few", password="race", declare="none")
    assert f"access to exchange '{bench.name}'" in str(error)
    assert "permissions" in error.hint


def test_tls(guarded: EmbeddedRabbitMQ, certificates: Path) -> None:
    own: dict[str, Any] = {
        "url": f"amqps://localhost:{guarded.tls_port}",
        "tls_ca": certificates / "ca.crt",
        "tls_certificate": certificates / "client.crt",
        "tls_key": certificates / "client.key",
    }
    bench = Bench(guarded)
    assert bench.deliver(range(500), **own).messages == 500
    assert bench.deliver(range(500, 600), **own, mechanism="EXTERNAL").messages == 100
    assert bench.numbers() == list(range(600))
    other = refusal(bench, **{**own, "tls_ca": certificates / "other.crt"})
    assert "certificate" in str(other).lower()
    missing = refusal(bench, **{**own, "tls_ca": certificates / "none.crt"})
    assert "none.crt cannot be read" in str(missing)


def test_a_client_certificate_is_needed(guarded: EmbeddedRabbitMQ, certificates: Path) -> None:
    url = f"amqps://localhost:{guarded.tls_port}"
    # The server refuses the client after the handshake. Its reason may be lost with the connection.
    with pytest.raises(SinkError):
        Bench(guarded).deliver(range(3), url=url, tls_ca=certificates / "ca.crt")
