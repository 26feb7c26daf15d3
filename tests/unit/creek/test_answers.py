"""Requests for schemas: which bytes are a fingerprint, and what gets no reply."""

from __future__ import annotations

import asyncio
import base64
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tailrace.creek.answers import Answers, fingerprint_of
from tailrace.encode.creek.names import StreamLayout
from tailrace.errors import UnexpectedError


@given(st.binary(min_size=8, max_size=8), st.booleans(), st.booleans())
def test_every_fingerprint_is_read(raw: bytes, padded: bool, other: bool) -> None:
    encoded = base64.b64encode(raw) if other else base64.urlsafe_b64encode(raw)
    text = encoded if padded else encoded.rstrip(b"=")
    assert fingerprint_of(text) == base64.urlsafe_b64encode(raw).decode()


@given(st.binary())
def test_any_other_request_is_invalid(request: bytes) -> None:
    fingerprint = fingerprint_of(request)
    if fingerprint is not None:
        raw = base64.urlsafe_b64decode(fingerprint)
        assert len(raw) == 8
        assert len(request.strip()) in (11, 12)


def test_an_unknown_schema_gets_no_reply() -> None:
    """Creek's clients take any reply for a schema: after an error they drop the message."""

    class Absent:
        def use(self) -> Any:
            raise UnexpectedError("no table")

    versions: Any = SimpleNamespace(find=lambda _fingerprint: None, read=lambda: None)
    session: Any = Absent()
    layout = StreamLayout(namespace="EU", database="shop")
    answers = Answers(layout, versions, session)
    assert answers.subjects == ("EU_schema_shop",)
    assert asyncio.run(answers.answer("EU_schema_shop", b"AAAAAAAAAAA=")) is None
    reply = asyncio.run(answers.answer("EU_schema_shop", b"?"))
    assert reply is not None
    assert reply.headers["Nats-Service-Error-Code"] == "400"
