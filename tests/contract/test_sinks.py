"""Every sink that takes messages keeps the contract of `tailrace.sinks.contract`.

A sink joins with a bench. Sinks that take records have a contract and a suite of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tailrace.errors import PoisonedError, SinkError
from tailrace.message import MESSAGES
from tailrace.position import ORIGIN
from tailrace.sinks.contract import Receipt
from tailrace.sinks.outcome import Verdict
from tailrace.sinks.registry import SINKS
from tests.contract.benches.bench import TOO_LARGE
from tests.contract.benches.registry import BENCHES, names
from tests.unit.sinks.rows import message_id, payload, position, rows, write

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.sinks.contract import Sink
    from tests.contract.benches.bench import Bench, Delivered


@pytest.fixture(params=names())
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    with BENCHES[request.param](request) as made:
        yield made


@pytest.fixture
def sink(bench: Bench) -> Iterator[Sink]:
    made = bench.make()
    made.open(ORIGIN)
    yield made
    made.close()


def expected(bench: Bench, numbers: range) -> list[Delivered]:
    return [(bench.place(), message_id(n), payload(n)) for n in numbers]


def weight(numbers: range) -> int:
    return sum(len(payload(n)) for n in numbers)


def test_every_registered_sink_has_a_bench() -> None:
    taking_messages = {sink.name for sink in SINKS.all() if not sink.records}
    assert {name.partition("-")[0] for name in BENCHES} == taking_messages


def test_messages_arrive_as_they_are_and_in_order(bench: Bench, sink: Sink) -> None:
    for start in (0, 50, 100):
        write(sink, rows(range(start, start + 50), destination=bench.place()))
    assert sink.flush() == Receipt(messages=150, bytes=weight(range(150)))
    assert bench.delivered() == expected(bench, range(150))


def test_a_receipt_covers_what_came_since_the_last(bench: Bench, sink: Sink) -> None:
    assert sink.flush() == Receipt()
    write(sink, rows(range(10), destination=bench.place()))
    write(sink, rows(range(10, 20), destination=bench.place()))
    assert sink.flush().messages == 20
    assert sink.flush() == Receipt()
    write(sink, rows(range(20, 25), destination=bench.place()))
    assert sink.flush().messages == 5


def test_empty_batches_are_nothing(bench: Bench, sink: Sink) -> None:
    write(sink, rows([], destination=bench.place()))
    assert sink.flush() == Receipt()


def test_slices_are_read_within_their_bounds(bench: Bench, sink: Sink) -> None:
    write(sink, rows(range(100), destination=bench.place()).slice(10, 20))
    assert sink.flush().messages == 20
    assert bench.delivered() == expected(bench, range(10, 30))


def test_any_bytes_may_be_a_payload(bench: Bench, sink: Sink) -> None:
    payloads = [b"", b"\r\n", bytes(range(256)), "žluťoučký 🐎".encode(), b"x" * 200_000]
    batch = rows(range(len(payloads)), destination=bench.place())
    field = MESSAGES.get_field_index("payload")
    write(sink, batch.set_column(field, MESSAGES.field(field), pa.array(payloads, pa.binary())))
    sink.flush()
    assert [one[2] for one in bench.delivered()] == payloads


def test_a_message_that_is_too_large_is_refused_and_others_are_delivered(
    bench: Bench, sink: Sink
) -> None:
    payloads = [payload(number) for number in range(5)]
    payloads[2] = b"x" * TOO_LARGE
    batch = rows(range(5), destination=bench.place())
    field = MESSAGES.get_field_index("payload")
    batch = batch.set_column(field, MESSAGES.field(field), pa.array(payloads, pa.binary()))
    refused = sink.inspect(batch)
    assert list(refused) == [2]
    assert refused[2].verdict is Verdict.REFUSED
    assert refused[2].code == PoisonedError.code
    assert "bytes" in refused[2].reason
    assert refused[2].hint
    assert bench.delivered() == []
    write(sink, batch.slice(0, 2))
    write(sink, batch.slice(3))
    assert sink.flush().messages == 4
    assert [one[1] for one in bench.delivered()] == [message_id(n) for n in (0, 1, 3, 4)]


def test_inspection_of_slices_names_their_rows(bench: Bench, sink: Sink) -> None:
    batch = rows(range(4), destination=bench.place(), size=TOO_LARGE).slice(1, 2)
    assert list(sink.inspect(batch)) == [0, 1]
    assert sink.inspect(batch.slice(0, 0)) == {}
    assert sink.flush() == Receipt()


def test_destinations_are_kept_apart(bench: Bench, sink: Sink) -> None:
    write(sink, rows(range(3), destination=bench.place("a")))
    write(sink, rows(range(3, 6), destination=bench.place("b")))
    sink.flush()
    found = [one[0] for one in bench.delivered()]
    assert found == [bench.place("a")] * 3 + [bench.place("b")] * 3


def test_a_sink_may_be_opened_again_and_again(bench: Bench, sink: Sink) -> None:
    for start in range(0, 60, 20):
        sink.open(position(start - 1) if start else ORIGIN)
        write(sink, rows(range(start, start + 20), destination=bench.place()))
        assert sink.flush().messages == 20
    assert bench.delivered() == expected(bench, range(60))


def test_what_was_not_flushed_comes_again_without_loss(bench: Bench) -> None:
    first = bench.make()
    first.open(ORIGIN)
    write(first, rows(range(50), destination=bench.place()))
    first.flush()
    write(first, rows(range(50, 100), destination=bench.place()))
    first.close()
    second = bench.make()
    second.open(position(49))
    write(second, rows(range(50, 100), destination=bench.place()))
    receipt = second.flush()
    second.close()
    assert receipt.messages + receipt.duplicates == 50
    assert list(dict.fromkeys(bench.delivered())) == expected(bench, range(100))


def test_a_closed_sink_takes_nothing(bench: Bench) -> None:
    sink = bench.make()
    with pytest.raises(SinkError):
        write(sink, rows(range(1), destination=bench.place()))
    sink.open(ORIGIN)
    sink.close()
    sink.close()
    with pytest.raises(SinkError):
        write(sink, rows(range(1), destination=bench.place()))
    with pytest.raises(SinkError):
        sink.flush()
