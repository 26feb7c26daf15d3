"""Requests over NATS: errors as replies."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tailrace.jetstream.requests import refusal


@given(st.text())
def test_a_refusal_has_one_line_of_header(message: str) -> None:
    reply = refusal(message, code="X", status=404, hint="h")
    assert msgspec.json.decode(reply.data) == {"error": message, "code": "X", "hint": "h"}
    line = reply.headers["Nats-Service-Error"]
    assert len(line) <= 500
    assert line.isprintable()
    assert reply.headers["Nats-Service-Error-Code"] == "404"
