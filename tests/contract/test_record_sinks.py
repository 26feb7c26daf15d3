"""Every sink for records keeps the contract of `tailrace.shadow.contract`.

A sink joins with a bench: how to create one, how to write records to its source, and how to read
what it delivered without its own code.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tailrace.encode.records import RECORDS
from tailrace.errors import SinkError
from tailrace.position import ORIGIN
from tailrace.sinks.contract import Receipt
from tests.integration.shadow.bench import Bench, copy_request
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.shadow.contract import RecordSink
    from tailrace.testing import EmbeddedKafka
    from tests.fix_postgres import Database


@pytest.fixture(params=["shadow"])
def bench(database: Database, kafka_server: EmbeddedKafka) -> Iterator[Bench]:
    """A topic with two partitions, of 30 and 20 records, and an empty destination."""
    created = Bench(database, kafka_server.bootstrap, f"c{uuid.uuid4().hex[:8]}")
    created.install()
    created.create_topic(partitions=2)
    created.produce(30, partition=0)
    created.produce(20, partition=1)
    yield created
    created.close()


@pytest.fixture
def sink(bench: Bench) -> RecordSink:
    opened: RecordSink = bench.sink()
    opened.open(ORIGIN)
    return opened


def everything(bench: Bench) -> bool:
    """Whether both partitions are copied, each record once and in order."""
    return all(
        bench.kafka_records(partition) == bench.broker_records(partition) for partition in (0, 1)
    )


def payload(bench: Bench, first: int, end: int) -> int:
    """Bytes of the values of `[first, end)` in both partitions."""
    return sum(
        len(value or b"")
        for partition in (0, 1)
        for _, _, value, _ in bench.broker_records(partition)[first:end]
    )


def topic_id(bench: Bench) -> int:
    return int(bench.database.query("SELECT id FROM kafka.topics")[0][0])


def test_records_are_delivered_unchanged_and_in_order(bench: Bench, sink: RecordSink) -> None:
    for first in (0, 10, 20):
        sink.write(bench.stream(first, first + 10))
    assert sink.flush() == Receipt(messages=50, bytes=payload(bench, 0, 30))
    assert everything(bench)


def test_partitions_may_be_mixed_in_a_batch(bench: Bench, sink: RecordSink) -> None:
    batch = bench.stream()
    # In order of offsets, so that the partitions alternate.
    sink.write(batch.take(pa.compute.sort_indices(batch["offset"])))
    assert sink.flush().messages == 50
    assert everything(bench)


def test_a_receipt_covers_the_records_since_the_last(bench: Bench, sink: RecordSink) -> None:
    assert sink.flush() == Receipt()
    sink.write(bench.stream(0, 5))
    sink.write(bench.stream(5, 10))
    assert sink.flush() == Receipt(messages=20, bytes=payload(bench, 0, 10))
    assert sink.flush() == Receipt()
    sink.write(bench.stream(10, 12))
    assert sink.flush().messages == 4


def test_an_empty_batch_delivers_nothing(bench: Bench, sink: RecordSink) -> None:
    sink.write(pa.RecordBatch.from_pylist([], schema=RECORDS))
    assert sink.flush() == Receipt()


def test_slices_are_read_within_their_bounds(bench: Bench, sink: RecordSink) -> None:
    sink.write(bench.stream(0, 1 << 40).slice(0, 10))
    assert sink.flush().messages == 10
    assert bench.kafka_records(0) == bench.broker_records(0)[:10]


def test_nothing_is_visible_before_a_flush(bench: Bench, sink: RecordSink) -> None:
    sink.write(bench.stream(0, 10))
    sink.flush()
    sink.write(bench.stream(10, 20))
    first = bench.broker_records(0)[:10]
    wait_for(lambda: bench.kafka_records(0, is_open=True), "the first flush")
    assert bench.kafka_records(0, is_open=True) == first
    sink.flush()
    assert bench.kafka_records(0) == bench.broker_records(0)[:20]


def test_replayed_records_are_duplicates(bench: Bench, sink: RecordSink) -> None:
    sink.write(bench.stream(0, 10))
    sink.flush()
    sink.open(ORIGIN)
    sink.write(bench.stream())
    receipt = sink.flush()
    assert (receipt.messages, receipt.duplicates) == (30, 20)
    assert everything(bench)


def test_a_new_sink_reads_the_progress_back(bench: Bench, sink: RecordSink) -> None:
    sink.write(bench.stream())
    sink.flush()
    sink.close()
    second: RecordSink = bench.sink()
    second.open(ORIGIN)
    second.write(bench.stream())
    assert second.flush() == Receipt(duplicates=50)
    assert everything(bench)


def test_unflushed_records_are_replayed_without_loss(bench: Bench, sink: RecordSink) -> None:
    sink.write(bench.stream(0, 10))
    sink.flush()
    sink.write(bench.stream(10, 20))
    sink.close()
    second: RecordSink = bench.sink()
    second.open(ORIGIN)
    second.write(bench.stream(10))
    assert second.flush().messages == 30
    assert everything(bench)


def test_missing_offsets_are_read_from_the_source(bench: Bench, sink: RecordSink) -> None:
    sink.write(bench.stream(15))
    # Partition 0 is copied from offset 0 on, and so is partition 1.
    assert sink.flush().messages == 50
    assert everything(bench)


def test_a_copy_request_copies_exactly_the_records_before_its_end(
    bench: Bench, sink: RecordSink
) -> None:
    sink.write(copy_request((topic_id(bench), 0, 12), (topic_id(bench), 1, 20)))
    assert sink.flush().messages == 32
    assert bench.kafka_records(0) == bench.broker_records(0)[:12]
    assert bench.kafka_records(1) == bench.broker_records(1)


def test_a_sink_that_opens_fences_the_earlier_one(bench: Bench, sink: RecordSink) -> None:
    sink.write(bench.stream(0, 10))
    second: RecordSink = bench.sink()
    second.open(ORIGIN)
    second.write(bench.stream(0, 20))
    assert second.flush().messages == 40
    with pytest.raises(SinkError):
        sink.flush()
    # The earlier one takes over again, with the progress of the other.
    sink.open(ORIGIN)
    sink.write(bench.stream())
    receipt = sink.flush()
    assert (receipt.messages, receipt.duplicates) == (10, 40)
    assert everything(bench)


def test_a_closed_sink_refuses_records(bench: Bench) -> None:
    sink: RecordSink = bench.sink()
    with pytest.raises(SinkError):
        sink.write(bench.stream(0, 1))
    sink.open(ORIGIN)
    sink.close()
    sink.close()
    with pytest.raises(SinkError):
        sink.write(bench.stream(0, 1))
    with pytest.raises(SinkError):
        sink.flush()
