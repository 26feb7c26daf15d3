from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import nkeys
import pytest

from tailrace.errors import ConfigError
from tailrace.jetstream import login
from tailrace.sinks.nats.settings import NatsSink

if TYPE_CHECKING:
    from pathlib import Path

SEED = nkeys.encode_seed(bytes(range(32)), nkeys.PREFIX_BYTE_USER)


def settings(**given: Any) -> NatsSink:
    return NatsSink.model_validate({"type": "nats"} | given)


def proof(given: NatsSink, nonce: str = "nonce") -> dict[str, Any]:
    return dict(login.credentials(given, login.addresses(given.url)[0], nonce))


def test_addresses() -> None:
    found = login.addresses("nats://a, tls://b:1,c:2,nats://u:p%40@[::1]:3")
    assert [str(one) for one in found] == ["a:4222", "b:1", "c:2", "::1:3"]
    assert [one.tls for one in found] == [False, True, False, False]
    assert (found[3].user, found[3].password) == ("u", "p@")


@pytest.mark.parametrize("url", ["", " , ", "http://a", "nats://", "nats://a:b", "ws://a"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(ConfigError):
        login.addresses(url)


def test_users_and_tokens() -> None:
    assert proof(settings()) == {}
    assert proof(settings(user="u", password="p")) == {"user": "u", "pass": "p"}
    assert proof(settings(token="t")) == {"auth_token": "t"}
    assert proof(settings(url="nats://u:p@a", user="x")) == {"user": "u", "pass": "p"}
    assert proof(settings(url="nats://t@a")) == {"auth_token": "t"}


def signed(signature: str, nonce: str) -> bool:
    raw = base64.urlsafe_b64decode(signature + "=" * (-len(signature) % 4))
    return bool(nkeys.from_seed(bytearray(SEED)).verify(nonce.encode(), raw))


def test_an_nkey_signs_the_nonce(tmp_path: Path) -> None:
    file = tmp_path / "user.nk"
    file.write_bytes(SEED + b"\n")
    found = proof(settings(nkey=file), "abc")
    assert found["nkey"] == bytes(nkeys.from_seed(bytearray(SEED)).public_key).decode()
    assert signed(found["sig"], "abc")


def test_a_credentials_file_gives_jwt_and_signature(tmp_path: Path) -> None:
    file = tmp_path / "user.creds"
    file.write_text(
        "-----BEGIN NATS USER JWT-----\r\nthe.jwt.itself\r\n------END NATS USER JWT------\r\n\r\n"
        f"-----BEGIN USER NKEY SEED-----\r\n{SEED.decode()}\r\n------END USER NKEY SEED------\r\n"
    )
    found = proof(settings(credentials=file), "abc")
    assert found["jwt"] == "the.jwt.itself"
    assert signed(found["sig"], "abc")


def test_broken_files_are_named_and_never_quoted(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    with pytest.raises(ConfigError, match="secret"):
        proof(settings(nkey=file))
    file.write_text("SUAHIDDEN")
    for given in (settings(nkey=file), settings(credentials=file)):
        with pytest.raises(ConfigError) as caught:
            proof(given)
        assert "HIDDEN" not in str(caught.value)
        assert caught.value.__cause__ is None
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not a text file"):
        proof(settings(credentials=file))


def test_certificates_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="certificates"):
        login.tls_context(settings(tls_ca=tmp_path / "gone"))
