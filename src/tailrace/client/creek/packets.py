"""Packets: one message of Creek in one or several messages of NATS.

| packet     | bytes                                                               |
|------------|---------------------------------------------------------------------|
| the first  | 00 00, the length of the whole content (4 bytes), then content      |
| each other | its number, from 1 on (2 bytes), then more content                  |

Tailrace writes single packets. Creek divides what exceeds the server's `max_payload`. If a content
fills its packets exactly, Creek sends an empty one after them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tailrace.encode.creek.schema import unpacked
from tailrace.errors import MalformedError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tailrace.client.readers.reader import StreamMessage

_NUMBER_BYTES, _HEAD_BYTES = 2, 6


def unpack(payload: bytes) -> bytes:
    """The content of a message that is a single packet."""
    content = unpacked(payload)
    if content is None:
        raise MalformedError("a message is not a single packet of Creek")
    return content


def continues(payload: bytes) -> bool:
    """Whether a packet is a later one of its message."""
    return len(payload) >= _NUMBER_BYTES and payload[:_NUMBER_BYTES] != b"\0\0"


class Assembler:
    """Joins the packets of one subject, in the order of the stream."""

    def __init__(self) -> None:
        self._begun = False
        """Whether a first packet was read. Before it, the rest of a message may come that began
        before the start of reading."""
        self._parts: list[bytes] = []
        self._missing = 0
        """Bytes that the present message still lacks."""

    @property
    def incomplete(self) -> bool:
        """Whether more packets of the present message must follow."""
        return self._missing > 0

    def join(self, packets: Iterable[StreamMessage]) -> list[StreamMessage]:
        """The messages that packets complete: each is its last packet, with the whole content."""
        whole = []
        for packet in packets:
            content = self.add(packet.data)
            if content is not None:
                whole.append(replace(packet, data=content))
        return whole

    def add(self, packet: bytes) -> bytes | None:
        """The content of the message that a packet completes.

        | packet                                 | result                                        |
        |----------------------------------------|-----------------------------------------------|
        | a first one                            | begins a message. One that is incomplete is   |
        |                                        | dropped: its producer stopped, and sends it   |
        |                                        | again as a whole                              |
        | the next one of an incomplete message  | continues it                                  |
        | an empty one, after a complete message | ignored                                       |
        | a later one, before any first one      | ignored                                       |
        | any other                              | MalformedError                                |
        """
        if packet[:_NUMBER_BYTES] == b"\0\0" and len(packet) >= _HEAD_BYTES:
            self._begun, self._parts = True, []
            self._missing = int.from_bytes(packet[_NUMBER_BYTES:_HEAD_BYTES], "big")
            return self._continue(packet[_HEAD_BYTES:])
        if not continues(packet):
            raise MalformedError("a message is not a packet of Creek")
        if not self._begun or (not self._missing and len(packet) == _NUMBER_BYTES):
            return None
        number = int.from_bytes(packet[:_NUMBER_BYTES], "big")
        if not self._missing or number != len(self._parts):
            raise MalformedError(f"packet {number} of a message of Creek is out of order")
        return self._continue(packet[_NUMBER_BYTES:])

    def _continue(self, content: bytes) -> bytes | None:
        if len(content) > self._missing:
            raise MalformedError("a message of Creek is longer than its first packet says")
        self._parts.append(content)
        self._missing -= len(content)
        return None if self._missing else b"".join(self._parts)
