"""Frames, as py-amqp reads them."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from amqp.method_framing import frame_handler
from amqp.serialization import loads
from hypothesis import given
from hypothesis import strategies as st

from tailrace.sinks.rabbitmq.frames import Frames
from tailrace.sinks.rabbitmq.settings import RabbitMQSink
from tests.unit.sinks.rows import rows, with_column

if TYPE_CHECKING:
    from collections.abc import Iterator

    import amqp
    import pyarrow as pa

FRAME_MAX = 4096
VALUES = st.lists(
    st.tuples(st.binary(max_size=50), st.none() | st.binary(max_size=40), st.text(max_size=40)),
    min_size=1,
    max_size=8,
)


class Read(NamedTuple):
    exchange: str
    routing_key: str
    mandatory: bool
    properties: dict[str, Any]
    body: bytes


class Reader:
    """Reads frames, and checks their form."""

    bytes_recv = 0

    def __init__(self) -> None:
        self.found: list[Read] = []
        # A published message has the parts of a delivered one.
        published = frozenset([(60, 40)])
        self._take = frame_handler(self, self._method, content_methods=published)

    def read(self, data: bytes) -> list[Read]:
        for frame in self._frames(data):
            self._take(frame)
        return self.found

    def _frames(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        at = 0
        while at < len(data):
            kind, channel, size = struct.unpack_from(">BHI", data, at)
            assert size <= FRAME_MAX - 8
            assert data[at + 7 + size] == 0xCE
            yield kind, channel, data[at + 7 : at + 7 + size]
            at += size + 8

    def _method(self, channel: int, _: object, args: bytes, message: amqp.Message) -> None:
        assert channel == 7
        values, _ = loads("Bssb", args, 4)
        body = message.body or b""
        self.found.append(Read(values[1], values[2], values[3], dict(message.properties), body))


def read(batch: pa.RecordBatch, **keys: Any) -> list[Read]:
    settings = RabbitMQSink.model_validate({"type": "rabbitmq", **keys})
    made = Frames(settings, channel=7, frame_max=FRAME_MAX)
    return Reader().read(bytes(made.build(batch)))


@given(VALUES, st.integers(0, 7))
def test_messages_are_read_as_they_were_built(
    values: list[tuple[bytes, bytes | None, str]], start: int
) -> None:
    names = [name.encode()[:255].decode(errors="ignore") for _, _, name in values]
    batch = rows(range(len(values)), destination=b"cdc/orders")
    batch = with_column(batch, "payload", [payload for payload, _, _ in values])
    batch = with_column(batch, "key", [key for _, key, _ in values])
    batch = with_column(batch, "id", [name.encode() for name in names])
    found = read(batch.slice(start), headers={"by": "us"}, message_type="change")
    assert [each.body for each in found] == [payload for payload, _, _ in values[start:]]
    for each, (_, key, _), name in zip(found, values[start:], names[start:], strict=True):
        assert each[:3] == ("cdc", "orders", True)
        headers = each.properties.pop("application_headers")
        assert headers.pop("by") == "us"
        assert [value_of(value) for value in headers.values()] == ([] if key is None else [key])
        assert each.properties == {
            "content_type": "application/json",
            "delivery_mode": 2,
            "message_id": name,
            "timestamp": 0,
            "type": "change",
        }


def value_of(value: str | bytes) -> bytes:
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else bytes(value)


@pytest.mark.parametrize("size", [0, 1, 4087, 4088, 4089, 8176, 8177, 100_000])
def test_bodies_are_divided(size: int) -> None:
    batch = with_column(rows(range(3), destination=b"/q"), "payload", [b"a", b"x" * size, b"c"])
    assert [each.body for each in read(batch)] == [b"a", b"x" * size, b"c"]


def test_destinations_and_flags() -> None:
    batch = rows(range(3))
    batch = with_column(batch, "destination", [b"cdc/a", b"/b", b"c"])
    found = read(batch, exchange="own", mandatory=False, persistent=False)
    assert [each[:3] for each in found] == [
        ("cdc", "a", False), ("", "b", False), ("own", "c", False),
    ]  # fmt: skip
    assert {each.properties["delivery_mode"] for each in found} == {1}
    assert all("type" not in each.properties for each in found)


def test_the_size_of_header_frames() -> None:
    batch = with_column(rows(range(2), destination=b"/q"), "key", [None, b"x" * 300])
    settings = RabbitMQSink.model_validate({"type": "rabbitmq", "headers": {"a": "b"}})
    made = Frames(settings, channel=7, frame_max=FRAME_MAX)
    frames = [size for kind, size in sizes(bytes(made.build(batch))) if kind == 2]
    assert frames == made.header_bytes(batch).tolist()


def sizes(data: bytes) -> Iterator[tuple[int, int]]:
    at = 0
    while at < len(data):
        kind, _, size = struct.unpack_from(">BHI", data, at)
        yield kind, size
        at += size + 8
