from __future__ import annotations

import contextlib
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import MalformedError
from tailrace.jetstream.protocol import Control, Event, Message, header_value, parse

words = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=12).map(
    str.encode
)
controls = st.sampled_from(
    [Control(b"PING"), Control(b"PONG"), Control(b"+OK"), Control(b"-ERR", b"'no'")]
)
messages = st.builds(
    Message,
    subject=words,
    reply=st.just(b"") | words,
    header=st.just(b"") | st.binary(min_size=1, max_size=40),
    payload=st.binary(max_size=60),
)


def encoded(event: Event) -> bytes:
    """The event as a server sends it."""
    if isinstance(event, Control):
        return event.verb + (b" " + event.argument if event.argument else b"") + b"\r\n"
    reply = event.reply + b" " if event.reply else b""
    body = event.header + event.payload
    if event.header:
        sizes = b"%d %d" % (len(event.header), len(body))
        return b"HMSG %s 1 %s%s\r\n%s\r\n" % (event.subject, reply, sizes, body)
    return b"MSG %s 1 %s%d\r\n%s\r\n" % (event.subject, reply, len(body), body)


@given(st.lists(controls | messages), st.lists(st.integers(0, 400)))
def test_any_split_of_the_bytes_gives_the_same_events(events: list[Event], cuts: list[int]) -> None:
    data = b"".join(map(encoded, events))
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    found: list[Event] = []
    rest = b""
    for start, end in itertools.pairwise(edges):
        rest += data[start:end]
        whole, used = parse(rest)
        found += whole
        rest = rest[used:]
    assert found == events
    assert rest == b""


@given(st.binary(max_size=200))
def test_any_bytes_are_parsed_malformed_or_incomplete(data: bytes) -> None:
    with contextlib.suppress(MalformedError):
        _, used = parse(data)
        assert 0 <= used <= len(data)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n",
        b"MSG a 1\r\n",
        b"MSG a 1 x 3 4\r\n",
        b"MSG a 1 -3\r\n",
        b"MSG a 1 999999999999\r\n",
        b"HMSG a 1 9 3\r\n",
        b"MSG a 1 2\r\nabcd",
        b"x" * (2 << 20),
    ],
)
def test_malformed_bytes(data: bytes) -> None:
    with pytest.raises(MalformedError):
        parse(data)


def test_statuses() -> None:
    assert Message(subject=b"a", header=b"NATS/1.0 503\r\n\r\n").status == 503
    assert Message(subject=b"a", header=b"NATS/1.0 404 No Messages\r\n\r\n").status == 404
    assert Message(subject=b"a", header=b"NATS/1.0\r\nA: 503\r\n\r\n").status == 0
    assert Message(subject=b"a").status == 0


def test_header_values() -> None:
    header = b"NATS/1.0\r\nA:  1 \r\nNats-Msg-Id: a: b\r\n\r\n"
    assert header_value(header, b"A") == b"1"
    assert header_value(header, b"Nats-Msg-Id") == b"a: b"
    assert header_value(header, b"Msg-Id") is None
    assert header_value(b"", b"A") is None
