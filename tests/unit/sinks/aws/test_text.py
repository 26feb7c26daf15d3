"""Any payload becomes a body that SQS and SNS take, and can be restored from it."""

from __future__ import annotations

import base64
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.sinks.aws.text import body_of, group_of, id_of
from tailrace.sinks.eventbridge.sink import detail_of

# From the quotas of SQS.
TAKEN = re.compile("[\x09\x0a\x0d\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]+")
PRINTABLE = re.compile(r"[A-Za-z0-9!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]{1,128}")
PAYLOADS = st.binary() | st.text().map(str.encode)


@given(PAYLOADS)
def test_a_body_is_taken_and_can_be_restored(payload: bytes) -> None:
    body, encoding = body_of(payload)
    assert TAKEN.fullmatch(body)
    assert (base64.b64decode(body) if encoding else body.encode()) == payload


@pytest.mark.parametrize("odd", ["\0", "\x1f", "\ufffe", "\uffff", ""])
def test_characters_that_are_not_taken(odd: str) -> None:
    assert body_of(odd.encode())[1] == "base64"


@given(PAYLOADS, PAYLOADS)
def test_ids_are_taken_and_different(one: bytes, other: bytes) -> None:
    for value in (one, other):
        assert PRINTABLE.fullmatch(id_of(value))
        assert PRINTABLE.fullmatch(group_of(value, 1))
    assert (id_of(one) == id_of(other)) is (one == other)
    assert PRINTABLE.fullmatch(group_of(None, 2**64 - 1))


@pytest.mark.parametrize("payload", [b"[1]", b"7", b"", b"\xff", b'{"a":', b'{"a": 1} '])
def test_a_detail_is_an_object(payload: bytes) -> None:
    wrapped = base64.b64encode(payload).decode()
    expected = f'{{"encoding":"base64","payload":"{wrapped}"}}'
    assert detail_of(payload) == (payload.decode() if payload.startswith(b'{"a": 1}') else expected)
