"""Logins and TLS: a gateway before a real server asks for them. No error has a secret."""

from __future__ import annotations

import base64
import ssl
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.errors import SinkRefusedError
from tailrace.sinks.registry import SINKS
from tailrace.testing import HttpRequest, HttpResponse
from tests.integration.search.bench import Bench, Change, Gateway

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tailrace.testing import EmbeddedElasticsearch, EmbeddedOpenSearch

CHANGE = Change(number=0, key="a", doc={"n": 1})
BASIC = base64.b64encode(b"tail:race").decode()


class Guarded(Gateway):
    """Takes requests with one authorization."""

    authorization = f"Basic {BASIC}"
    status = 401

    def instead(self, request: HttpRequest) -> HttpResponse | None:
        if request.headers.get("authorization") == self.authorization:
            return None
        return HttpResponse(status=self.status, body=b'{"error": "who are you"}')


@pytest.fixture
def bench(opensearch_server: EmbeddedOpenSearch) -> Iterator[Bench]:
    with Guarded(opensearch_server) as gateway:
        made = Bench(opensearch_server, url=gateway.url)
        yield made


def test_user_and_password(bench: Bench) -> None:
    assert bench.deliver(CHANGE, user="tail", password="race").messages == 1
    wrong: list[dict[str, Any]] = [{}, {"user": "tail", "password": "s3cret"}, {"token": "s3cret"}]
    for keys in wrong:
        with pytest.raises(SinkRefusedError, match="refuses the login") as caught:
            bench.deliver(CHANGE, **keys)
        assert "`user` and `password`" in caught.value.hint
        assert "s3cret" not in f"{caught.value} {caught.value.hint} {caught.value.__cause__!r}"
        [finding] = SINKS.find(bench.kind).check(bench.settings(**keys))
        assert (finding.severity, finding.fix) == ("error", caught.value.hint)


def test_a_missing_permission_is_no_wrong_login(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Guarded, "status", 403)
    with pytest.raises(SinkRefusedError, match="permission denied") as caught:
        bench.deliver(CHANGE)
    assert "Permissions" in caught.value.hint


@pytest.mark.long
def test_tokens_and_keys(
    elasticsearch_server: EmbeddedElasticsearch, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, scheme in (("token", "Bearer"), ("api_key", "ApiKey")):
        monkeypatch.setattr(Guarded, "authorization", f"{scheme} s3cret")
        with Guarded(elasticsearch_server) as gateway:
            bench = Bench(elasticsearch_server, url=gateway.url)
            keys: dict[str, Any] = {name: "s3cret"}
            assert bench.deliver(CHANGE, **keys).messages == 1


@contextmanager
def encrypted(
    server: EmbeddedOpenSearch, certificates: Path, *, asks: bool = False
) -> Iterator[Bench]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.crt", certificates / "server.key")
    if asks:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(certificates / "ca.crt")
    with Gateway(server, context=context) as gateway:
        yield Bench(server, url=gateway.url)


def test_tls(opensearch_server: EmbeddedOpenSearch, certificates: Path) -> None:
    with encrypted(opensearch_server, certificates) as bench:
        assert bench.deliver(CHANGE, tls_ca=certificates / "ca.crt").messages == 1
        for name, reason in (("other.crt", "certificate"), ("none.crt", "cannot be read")):
            with pytest.raises(SinkRefusedError, match=reason) as caught:
                bench.deliver(CHANGE, tls_ca=certificates / name)
            assert "tls_ca" in caught.value.hint


def test_client_certificates(opensearch_server: EmbeddedOpenSearch, certificates: Path) -> None:
    own: dict[str, Any] = {
        "tls_ca": certificates / "ca.crt",
        "tls_certificate": certificates / "client.crt",
        "tls_key": certificates / "client.key",
    }
    with encrypted(opensearch_server, certificates, asks=True) as bench:
        assert bench.deliver(CHANGE, **own).messages == 1
