"""Requests for schemas: which bytes are a fingerprint."""

from __future__ import annotations

import base64

from hypothesis import given
from hypothesis import strategies as st

from tailrace.creek.answers import fingerprint_of


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
