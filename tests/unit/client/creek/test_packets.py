"""Packets of Creek: messages that are divided, and everything that is no packet."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.client.creek.packets import Assembler
from tailrace.client.readers.reader import StreamMessage
from tailrace.encode.creek import schema as creek
from tailrace.errors import MalformedError


def divided(content: bytes, size: int) -> list[bytes]:
    """As Creek divides a message: one packet more than needed if the last one is full."""
    parts = [content[at * size : (at + 1) * size] for at in range(1 + len(content) // size)]
    heads = [creek.packet(content)[:6], *(at.to_bytes(2, "big") for at in range(1, len(parts)))]
    return [head + part for head, part in zip(heads, parts, strict=True)]


def messages(packets: list[bytes]) -> list[StreamMessage]:
    return [StreamMessage(number, packet, 0) for number, packet in enumerate(packets, 1)]


@given(st.lists(st.binary(max_size=40)), st.integers(1, 50), st.data())
def test_divided_messages_are_joined(contents: list[bytes], size: int, data: st.DataObject) -> None:
    packets = messages([packet for content in contents for packet in divided(content, size)])
    cut = data.draw(st.integers(0, len(packets)))
    assembler = Assembler()
    whole = assembler.join(packets[:cut]) + assembler.join(packets[cut:])
    assert [message.data for message in whole] == contents
    assert not assembler.incomplete
    # The position after a message is that of its last packet with content.
    assert [message.sequence for message in whole] == sorted(message.sequence for message in whole)


def test_a_message_stays_incomplete_until_its_last_packet() -> None:
    first, *others = divided(b"abcdefg", 3)
    assembler = Assembler()
    assert assembler.add(first) is None
    assert assembler.incomplete
    assert assembler.add(others[0]) is None
    assert assembler.add(others[1]) == b"abcdefg"
    assert not assembler.incomplete


def test_reading_may_start_inside_a_message() -> None:
    _, *rest = divided(b"abcdefg", 3)
    assembler = Assembler()
    assert [assembler.add(packet) for packet in rest] == [None, None]
    assert assembler.add(creek.packet(b"next")) == b"next"


def test_a_producer_that_stopped_begins_the_message_again() -> None:
    packets = divided(b"abcdefg", 3)
    assembler = Assembler()
    assert [message.data for message in assembler.join(messages(packets[:2] + packets))] == [
        b"abcdefg"
    ]


@pytest.mark.parametrize(
    "packets",
    [
        [b""],
        [b"\0"],
        [b"\0\0\0"],
        [creek.packet(b"ab") + b"c"],
        [creek.packet(b"ab"), b"\0\1c"],
        [creek.packet(b"abc")[:-1], b"\0\2c"],
        [creek.packet(b"abc")[:-1], b"\0\1cd"],
    ],
)
def test_anything_else_is_malformed(packets: list[bytes]) -> None:
    with pytest.raises(MalformedError):
        Assembler().join(messages(packets))
