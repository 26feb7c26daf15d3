"""Messages in JSON and MessagePack."""

from __future__ import annotations

import pytest

from tailrace.client.payload import decode
from tailrace.errors import MalformedError


@pytest.mark.parametrize("data", [b"", b"{", b"\xc1", b"\x01"])
def test_invalid_messages_are_malformed(data: bytes) -> None:
    with pytest.raises(MalformedError):
        decode(data)
