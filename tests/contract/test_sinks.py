"""Every sink keeps the contract of `tailrace.sinks.contract`.

A sink joins with one line in `BENCHES`: how to make one, and how to read what it delivered without
its own code.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Protocol

import nats
import pyarrow as pa
import pytest

from tailrace.config import NatsSink
from tailrace.errors import SinkError
from tailrace.message import MESSAGES
from tailrace.position import ORIGIN
from tailrace.sinks.contract import Receipt
from tailrace.sinks.nats import JetStream
from tailrace.testing import EmbeddedNats
from tests.unit.sinks.rows import message_id, payload, position, rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from tailrace.sinks.contract import Sink

Delivered = tuple[bytes, bytes, bytes]
"""Destination, id, payload."""


class Bench(Protocol):
    """A real destination, and sinks for it."""

    def make(self) -> Sink:
        """A new sink, not opened."""

    def delivered(self) -> list[Delivered]:
        """What the destination holds, in its order."""


class NatsBench:
    def __init__(self, url: str) -> None:
        self._url = url

    def make(self) -> Sink:
        return JetStream(NatsSink(type="nats", url=self._url), name="contract")

    def delivered(self) -> list[Delivered]:
        return asyncio.run(self._read())

    async def _read(self) -> list[Delivered]:
        client = await nats.connect(self._url)
        js = client.jetstream()
        found = []
        state = (await js.stream_info("CDC")).state
        for sequence in range(state.first_seq, state.last_seq + 1):
            message = await js.get_msg("CDC", sequence)
            assert message.subject is not None
            name = (message.headers or {})["Nats-Msg-Id"]
            found.append((message.subject.encode(), name.encode(), message.data or b""))
        await client.close()
        return found


@contextlib.contextmanager
def nats_bench() -> Iterator[Bench]:
    with EmbeddedNats() as server:
        yield NatsBench(server.url)


BENCHES: dict[str, Callable[[], AbstractContextManager[Bench]]] = {
    "nats": nats_bench,
}


@pytest.fixture(params=BENCHES)
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    with BENCHES[request.param]() as made:
        yield made


@pytest.fixture
def sink(bench: Bench) -> Iterator[Sink]:
    made = bench.make()
    made.open(ORIGIN)
    yield made
    made.close()


def expected(numbers: range) -> list[Delivered]:
    return [(b"cdc.orders.insert", message_id(n), payload(n)) for n in numbers]


def weight(numbers: range) -> int:
    return sum(len(payload(n)) for n in numbers)


def test_messages_arrive_as_they_are_and_in_order(bench: Bench, sink: Sink) -> None:
    for start in (0, 50, 100):
        sink.write(rows(range(start, start + 50)))
    assert sink.flush() == Receipt(messages=150, bytes=weight(range(150)))
    assert bench.delivered() == expected(range(150))


def test_a_receipt_covers_what_came_since_the_last(sink: Sink) -> None:
    assert sink.flush() == Receipt()
    sink.write(rows(range(10)))
    sink.write(rows(range(10, 20)))
    assert sink.flush().messages == 20
    assert sink.flush() == Receipt()
    sink.write(rows(range(20, 25)))
    assert sink.flush().messages == 5


def test_empty_batches_are_nothing(sink: Sink) -> None:
    sink.write(rows([]))
    assert sink.flush() == Receipt()


def test_slices_are_read_within_their_bounds(bench: Bench, sink: Sink) -> None:
    sink.write(rows(range(100)).slice(10, 20))
    assert sink.flush().messages == 20
    assert bench.delivered() == expected(range(10, 30))


def test_any_bytes_may_be_a_payload(bench: Bench, sink: Sink) -> None:
    payloads = [b"", b"\r\n", bytes(range(256)), "žluťoučký 🐎".encode(), b"x" * 500_000]
    batch = rows(range(len(payloads)))
    field = MESSAGES.get_field_index("payload")
    sink.write(batch.set_column(field, MESSAGES.field(field), pa.array(payloads, pa.binary())))
    sink.flush()
    assert [one[2] for one in bench.delivered()] == payloads


def test_destinations_are_kept_apart(bench: Bench, sink: Sink) -> None:
    sink.write(rows(range(3), destination=b"cdc.a.insert"))
    sink.write(rows(range(3, 6), destination=b"cdc.b.insert"))
    sink.flush()
    found = [one[0] for one in bench.delivered()]
    assert found == [b"cdc.a.insert"] * 3 + [b"cdc.b.insert"] * 3


def test_a_sink_may_be_opened_again_and_again(bench: Bench, sink: Sink) -> None:
    for start in range(0, 60, 20):
        sink.open(position(start - 1) if start else ORIGIN)
        sink.write(rows(range(start, start + 20)))
        assert sink.flush().messages == 20
    assert bench.delivered() == expected(range(60))


def test_what_was_not_flushed_comes_again_without_loss(bench: Bench) -> None:
    first = bench.make()
    first.open(ORIGIN)
    first.write(rows(range(50)))
    first.flush()
    first.write(rows(range(50, 100)))
    first.close()
    second = bench.make()
    second.open(position(49))
    second.write(rows(range(50, 100)))
    receipt = second.flush()
    second.close()
    assert receipt.messages + receipt.duplicates == 50
    assert list(dict.fromkeys(bench.delivered())) == expected(range(100))


def test_a_closed_sink_takes_nothing(bench: Bench) -> None:
    sink = bench.make()
    with pytest.raises(SinkError):
        sink.write(rows(range(1)))
    sink.open(ORIGIN)
    sink.close()
    sink.close()
    with pytest.raises(SinkError):
        sink.write(rows(range(1)))
    with pytest.raises(SinkError):
        sink.flush()
