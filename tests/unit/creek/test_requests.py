"""Replies to requests: what a fingerprint is, and how a refusal looks."""

from __future__ import annotations

import base64

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tailrace.creek.answers import fingerprint_of
from tailrace.jetstream.requests import refusal


@given(st.binary(min_size=8, max_size=8), st.booleans(), st.booleans())
def test_every_fingerprint_is_read(raw: bytes, padded: bool, other: bool) -> None:
    encoded = base64.b64encode(raw) if other else base64.urlsafe_b64encode(raw)
    text = encoded if padded else encoded.rstrip(b"=")
    assert fingerprint_of(text) == base64.urlsafe_b64encode(raw).decode()


@given(st.binary())
def test_anything_else_is_none(said: bytes) -> None:
    found = fingerprint_of(said)
    if found is not None:
        raw = base64.urlsafe_b64decode(found)
        assert len(raw) == 8
        assert len(said.strip()) in (11, 12)


@given(st.text())
def test_a_refusal_has_one_line_of_header(message: str) -> None:
    reply = refusal(message, code="X", status=404, hint="h")
    assert msgspec.json.decode(reply.data) == {"error": message, "code": "X", "hint": "h"}
    line = reply.headers["Nats-Service-Error"]
    assert len(line) <= 500
    assert line.isprintable()
    assert reply.headers["Nats-Service-Error-Code"] == "404"
