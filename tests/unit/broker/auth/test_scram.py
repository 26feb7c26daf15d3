"""SCRAM: the example of RFC 7677, and clients that cheat."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.broker.auth import scram
from tailrace.errors import MalformedError

PASSWORDS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
KEYS = {name: scram.keys(name, "pencil", b"salt" * 6) for name in scram.HASHES}


def test_the_example_of_rfc_7677() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    keys = scram.keys("SCRAM-SHA-256", "pencil", salt)
    exchange = scram.Exchange("SCRAM-SHA-256", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    first = exchange.first(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO", lambda _: keys)
    nonce = b"rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    assert first == b"r=" + nonce + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    assert exchange.name == "user"
    proof = b"dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    final = exchange.final(b"c=biws,r=" + nonce + b",p=" + proof)
    assert final == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def proof(mechanism: str, password: str, first: bytes, answer: bytes, final: bytes) -> bytes:
    """The messages of a client that knows the password."""
    name = scram.HASHES[mechanism]
    fields = dict(part.split(b"=", 1) for part in answer.split(b","))
    salt, rounds = base64.b64decode(fields[b"s"]), int(fields[b"i"])
    salted = hashlib.pbkdf2_hmac(name, password.encode(), salt, rounds)
    key = hmac.digest(salted, b"Client Key", name)
    transcript = b",".join((first, answer, final))
    signature = hmac.digest(hashlib.new(name, key).digest(), transcript, name)
    return base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True)))


def login(mechanism: str, kept: str, given: str, *, head: bytes = b"n,,") -> bytes | None:
    exchange = scram.Exchange(mechanism, secrets.token_urlsafe(12))
    keys = scram.keys(mechanism, kept, b"0123456789abcdef", 4096)
    bare = b"n=ann,r=abc"
    answer = exchange.first(head + bare, lambda _: keys)
    nonce = answer.split(b",")[0]
    final = b"c=" + base64.b64encode(head) + b"," + nonce
    return exchange.final(final + b",p=" + proof(mechanism, given, bare, answer, final))


@given(st.sampled_from(list(scram.HASHES)), PASSWORDS, PASSWORDS)
def test_only_the_right_password_is_accepted(mechanism: str, kept: str, given: str) -> None:
    assert (login(mechanism, kept, given) is not None) == (kept == given)


def test_clients_that_support_channel_binding_without_using_it() -> None:
    assert login("SCRAM-SHA-256", "x", "x", head=b"y,,") is not None
    assert login("SCRAM-SHA-256", "x", "x", head=b"n,a=ann,") is not None


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,",
        b"n,,n=,r=abc",
        b"n,,n=ann",
        b"n,,n=ann,r=",
        b"p=tls-unique,,n=ann,r=abc",
        b"n,,m=ext,n=ann,r=abc",
        b"n,,n=ann,r=abc,tokenauth=true",
        b"n,a=bob,n=ann,r=abc",
        b"n,,n=a=nn,r=abc",
        b"n,,n=\xff,r=abc",
        b"n,,n=ann,r=a b",
    ],
)
def test_invalid_first_messages_are_refused(message: bytes) -> None:
    with pytest.raises(MalformedError):
        scram.Exchange("SCRAM-SHA-256", "n").first(message, lambda _: KEYS["SCRAM-SHA-256"])


def test_names_may_have_commas() -> None:
    exchange = scram.Exchange("SCRAM-SHA-256", "n")
    exchange.first(b"n,,n=a=2Cb=3D=2C,r=abc", lambda _: KEYS["SCRAM-SHA-256"])
    assert exchange.name == "a,b=,"


@pytest.mark.parametrize(
    ("change", "accepted"),
    [
        (b"r=abcserver", True),
        # librdkafka before 2.6.1.
        (b"r=abcabcserver", True),
        (b"r=abcother", False),
        (b"r=abc", False),
        (b"r=xyzabcserver", False),
        (b"c=eSws", False),
    ],
)
def test_a_wrong_channel_or_nonce_is_refused(change: bytes, accepted: bool) -> None:
    """Also with a proof that matches it."""
    exchange = scram.Exchange("SCRAM-SHA-256", "server")
    bare = b"n=ann,r=abc"
    answer = exchange.first(b"n,," + bare, lambda _: KEYS["SCRAM-SHA-256"])
    parts = {b"c": b"c=biws", b"r": b"r=abcserver"} | {change[:1]: change}
    final = parts[b"c"] + b"," + parts[b"r"]
    made = proof("SCRAM-SHA-256", "pencil", bare, answer, final)
    assert (exchange.final(final + b",p=" + made) is not None) == accepted


@given(st.binary(max_size=80))
def test_random_first_messages_are_refused(data: bytes) -> None:
    exchange = scram.Exchange("SCRAM-SHA-512", "server")
    with pytest.raises(MalformedError):
        exchange.first(data, lambda _: KEYS["SCRAM-SHA-512"])
    with pytest.raises(MalformedError):
        exchange.final(data)


@given(st.binary(max_size=80))
def test_random_final_messages_are_refused(data: bytes) -> None:
    exchange = scram.Exchange("SCRAM-SHA-512", "server")
    exchange.first(b"n,,n=ann,r=abc", lambda _: KEYS["SCRAM-SHA-512"])
    with pytest.raises(MalformedError):
        exchange.final(data)
    encoded = base64.b64encode(data)
    try:
        assert exchange.final(b"c=biws,r=abcserver,p=" + (encoded or b"AA==")) is None
    except MalformedError:
        assert len(data) != 64
