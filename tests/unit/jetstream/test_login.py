from __future__ import annotations

import base64
import ssl
from typing import TYPE_CHECKING, Any

import nkeys
import pytest

from tailrace.errors import ConfigError
from tailrace.jetstream.login import Login, addresses, client_options
from tailrace.sinks.nats.settings import NatsSink

if TYPE_CHECKING:
    from pathlib import Path

SEED = nkeys.encode_seed(bytes(range(32)), nkeys.PREFIX_BYTE_USER)


def settings(**given: Any) -> NatsSink:
    return NatsSink.model_validate({"type": "nats"} | given)


def proof(given: NatsSink, nonce: str = "nonce") -> dict[str, Any]:
    login = Login.of(given)
    return dict(login.connect_fields(addresses(login.url)[0], nonce))


def options(**given: Any) -> dict[str, Any]:
    return Login.of(settings(**given)).client_options()


def test_addresses() -> None:
    parsed = addresses("nats://a, tls://b:1,c:2,nats://u:p%40@[::1]:3")
    assert [str(one) for one in parsed] == ["a:4222", "b:1", "c:2", "::1:3"]
    assert [one.tls for one in parsed] == [False, True, False, False]
    assert (parsed[3].user, parsed[3].password) == ("u", "p@")
    assert "p@" not in repr(parsed)


def test_secrets_in_an_address_are_not_shown() -> None:
    given = settings(url="nats://ann:hunter2@a,nats://s3cret@b")
    login = Login.of(given)
    for shown in (
        given,
        str(given),
        given.url,
        login,
        addresses(login.url),
        given.model_dump_json(),
    ):
        assert "hunter2" not in repr(shown)
        assert "s3cret" not in repr(shown)


@pytest.mark.parametrize("url", ["", " , ", "http://a", "nats://", "nats://a:b", "ws://a"])
def test_invalid_addresses(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        addresses(url)
    assert "nats://host:4222" in caught.value.hint


def test_credentials_of_users_and_tokens() -> None:
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
    fields = proof(settings(nkey=file), "abc")
    assert fields["nkey"] == bytes(nkeys.from_seed(bytearray(SEED)).public_key).decode()
    assert signed(fields["sig"], "abc")


def test_a_credentials_file_gives_jwt_and_signature(tmp_path: Path) -> None:
    file = tmp_path / "user.creds"
    file.write_text(
        "-----BEGIN NATS USER JWT-----\r\nthe.jwt.itself\r\n------END NATS USER JWT------\r\n\r\n"
        f"-----BEGIN USER NKEY SEED-----\r\n{SEED.decode()}\r\n------END USER NKEY SEED------\r\n"
    )
    fields = proof(settings(credentials=file), "abc")
    assert fields["jwt"] == "the.jwt.itself"
    assert signed(fields["sig"], "abc")


def test_invalid_files_are_named_and_never_quoted(tmp_path: Path) -> None:
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


def test_unreadable_certificates_are_config_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="certificates"):
        Login.of(settings(tls_ca=tmp_path / "missing")).tls_context()
    with pytest.raises(ConfigError, match="certificates"):
        options(tls_ca=tmp_path / "missing")


def test_nats_py_gets_the_same_login() -> None:
    assert options(url="nats://a, b:1") == {"servers": ["nats://a", "b:1"]}
    assert options(url="a", user="u", password="p") == {
        "servers": ["a"],
        "user": "u",
        "password": "p",
    }
    assert options(url="a", token="t", user="u", password="p") == {"servers": ["a"], "token": "t"}
    assert options(url="nats://u:p@a", user="x", password="y") == {"servers": ["nats://u:p@a"]}


def test_files_are_passed_to_nats_py_by_name(tmp_path: Path) -> None:
    creds, seed = tmp_path / "user.creds", tmp_path / "user.nk"
    assert options(url="a", credentials=creds, nkey=seed, token="t") == {
        "servers": ["a"],
        "user_credentials": str(creds),
    }
    assert options(url="a", nkey=seed, token="t") == {"servers": ["a"], "nkeys_seed": str(seed)}


def test_plain_values_give_the_same_options(tmp_path: Path) -> None:
    context = ssl.create_default_context()
    assert client_options("a,b") == {"servers": ["a", "b"]}
    assert client_options("a", user="u", password="p", tls=context) == {
        "servers": ["a"],
        "user": "u",
        "password": "p",
        "tls": context,
    }
    creds = str(tmp_path / "user.creds")
    assert client_options("a", credentials=creds)["user_credentials"] == creds


def test_tls_is_configured_by_any_file_or_a_context(tmp_path: Path) -> None:
    assert not Login.of(settings()).tls_configured
    assert Login.of(settings(tls_ca=tmp_path)).tls_configured
    assert Login.of(settings(tls_certificate=tmp_path)).tls_configured
    assert Login(url="a", tls=ssl.create_default_context()).tls_configured
