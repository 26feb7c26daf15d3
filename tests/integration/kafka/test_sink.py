"""The Kafka sink: messages arrive unchanged and in order, and no topic is altered."""

from __future__ import annotations

import gc
import random
from typing import TYPE_CHECKING

import kafka
import pyarrow as pa
import pytest
from kafka.partitioner.default import murmur2

from tailrace.errors import PoisonedError, SinkRefusedError, SinkUnreachableError
from tailrace.message import MESSAGES
from tailrace.position import ORIGIN
from tailrace.sinks.contract import Lane, Receipt
from tailrace.sinks.kafka.settings import KafkaSink
from tailrace.sinks.kafka.sink import Kafka, probe
from tailrace.sinks.outcome import Verdict
from tests.integration.kafka.reading import delivered
from tests.unit.sinks.rows import message_id, payload, position, rows, write
from tests.waiting import LONG_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.testing import EmbeddedKafka
    from tests.integration.kafka.reading import Bench

JAVA_HASHES = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
"""From the tests of Kafka's own Java client."""


def changed(batch: pa.RecordBatch, name: str, values: Sequence[object]) -> pa.RecordBatch:
    at = MESSAGES.get_field_index(name)
    return batch.set_column(at, MESSAGES.field(at), pa.array(values, MESSAGES.field(at).type))


@pytest.mark.parametrize("transactional", [False, True])
def test_messages_arrive_unchanged_and_in_order(bench: Bench, transactional: bool) -> None:
    with bench.opened(transactional=transactional) as sink:
        for start in range(0, 9000, 3000):
            write(sink, bench.rows(range(start, start + 3000), keys=11))
        receipt = sink.flush()
    assert receipt == Receipt(messages=9000, bytes=sum(len(payload(n)) for n in range(9000)))
    found = bench.held()
    assert [one.value for one in found] == [payload(number) for number in range(9000)]
    assert [one.id for one in found] == [message_id(number).decode() for number in range(9000)]
    assert [one.key for one in found] == [b"k%d" % (number % 11) for number in range(9000)]


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_another_client_library_reads_the_same_messages(
    bench: Bench, kafka_server: EmbeddedKafka
) -> None:
    with bench.opened(transactional=True) as sink:
        write(sink, bench.rows(range(500), keys=3))
        sink.flush()
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=kafka_server.bootstrap,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        consumer_timeout_ms=300_000,
    )
    consumer.assign([kafka.TopicPartition(bench.topic, 0)])
    read = []
    for record in consumer:
        read.append((record.key, record.value, dict(record.headers)["tailrace-id"].decode()))
        if len(read) == 500:
            break
    consumer.close()
    # Its close may leave a socket to the garbage collector.
    del consumer, record
    gc.collect()
    assert read == [(one.key, one.value, one.id) for one in bench.held()]


def test_the_timestamp_of_a_message_is_its_commit_time(bench: Bench) -> None:
    stamps = [1_700_000_000_123_456, 1_700_000_001_000_999]
    with bench.opened() as sink:
        write(sink, changed(bench.rows(range(2)), "committed_at", stamps))
        sink.flush()
    assert [one.timestamp_ms for one in bench.held()] == [1_700_000_000_123, 1_700_000_001_000]


def test_headers_can_be_left_out(bench: Bench) -> None:
    with bench.opened(headers=False) as sink:
        write(sink, bench.rows(range(2)))
        sink.flush()
    assert [one.id for one in bench.held()] == ["", ""]


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_messages_arrive_with_every_compression(bench: Bench, compression: str) -> None:
    with bench.opened(compression=compression) as sink:
        write(sink, bench.rows(range(500), size=300))
        sink.flush()
    assert bench.numbers() == list(range(500))


def test_keys_go_to_the_same_partitions_as_in_the_java_client(bench: Bench) -> None:
    bench.make(partitions=7)
    keys = [*JAVA_HASHES, *(b"key-%d" % number for number in range(500))]
    with bench.opened() as sink:
        write(sink, changed(bench.rows(range(len(keys))), "key", keys))
        sink.flush()
    for found in bench.held():
        assert found.key is not None
        hashed = JAVA_HASHES.get(found.key, murmur2(found.key))
        assert found.partition == (hashed & 0x7FFFFFFF) % 7


def test_messages_without_a_key_keep_their_order(bench: Bench) -> None:
    bench.make(partitions=5)
    with bench.opened() as sink:
        for start in range(0, 5000, 500):
            write(sink, bench.rows(range(start, start + 500)))
        sink.flush()
    found = bench.held()
    assert len({one.partition for one in found}) == 1
    assert [one.number for one in found] == list(range(5000))


def test_destinations_may_name_the_partition(bench: Bench) -> None:
    bench.make(partitions=4)

    def towards(numbers: range, partitions: list[int]) -> pa.RecordBatch:
        names = [f"{bench.topic}/{partition}".encode() for partition in partitions]
        return bench.rows(numbers).set_column(
            0, MESSAGES.field("destination"), pa.array(names, pa.binary())
        )

    with bench.opened() as sink:
        write(sink, towards(range(100), [number * 7 % 4 for number in range(100)]))
        sink.flush()
        assert {(one.number, one.partition) for one in bench.held()} == {
            (number, number * 7 % 4) for number in range(100)
        }
        with pytest.raises(SinkRefusedError, match="topic"):
            delivered(sink, towards(range(100, 101), [9]))


def test_missing_topics_are_created_with_the_configured_partitions(bench: Bench) -> None:
    with bench.opened(partitions=3, replicas=1) as sink:
        write(sink, bench.rows(range(30), keys=30))
        sink.flush()
    listed = bench.admin().list_topics(bench.topic, timeout=60).topics[bench.topic]
    assert len(listed.partitions) == 3


def test_an_existing_topic_is_never_altered(bench: Bench) -> None:
    bench.make(partitions=2, retention_ms="60000")
    with bench.opened(partitions=9) as sink:
        write(sink, bench.rows(range(30), keys=30))
        sink.flush()
    listed = bench.admin().list_topics(bench.topic, timeout=60).topics[bench.topic]
    assert len(listed.partitions) == 2


def test_a_missing_topic_is_named(bench: Bench) -> None:
    with bench.opened(create=False) as sink:
        refused = sink.inspect(bench.rows(range(3)))
    assert list(refused) == [0, 1, 2]
    assert refused[0].code == SinkRefusedError.code
    assert f"no topic {bench.topic}" in refused[0].reason
    assert bench.topic not in bench.admin().list_topics(timeout=60).topics


@pytest.mark.parametrize("transactional", [False, True])
def test_an_invalid_topic_is_named(bench: Bench, transactional: bool) -> None:
    batch = changed(
        bench.rows(range(3)), "destination", [bench.topic.encode()] * 2 + [b"not a topic!"]
    )
    with bench.opened(transactional=transactional) as sink:
        refused = sink.inspect(batch)
        assert list(refused) == [2]
        assert refused[2].code == PoisonedError.code
        assert "not a topic!" in refused[2].reason
        write(sink, batch.slice(0, 2))
        sink.flush()
    assert bench.numbers() == [0, 1]


def test_a_message_above_max_message_bytes_is_named(bench: Bench) -> None:
    batch = changed(
        bench.rows(range(7)), "payload", [*map(payload, range(5)), b"x" * 2_000_000, payload(6)]
    )
    with bench.opened() as sink:
        refused = sink.inspect(batch)
        assert list(refused) == [5]
        assert refused[5].verdict is Verdict.REFUSED
        assert "max_message_bytes" in refused[5].reason
        with pytest.raises(PoisonedError, match="max_message_bytes") as caught:
            sink.write(batch)
    assert message_id(5).decode() in str(caught.value)
    assert bench.numbers() == list(range(5))


@pytest.mark.parametrize("headers", [True, False])
def test_sizes_are_those_of_librdkafka(bench: Bench, headers: bool) -> None:
    """The largest message that is not refused is sent, and one byte more is refused."""
    with bench.opened(max_message_bytes=1000, headers=headers) as sink:
        sizes = [size for size in range(800, 1000) if not sink.inspect(bench.rows([0], size=size))]
        write(sink, bench.rows([0], size=sizes[-1]))
        assert sink.flush().messages == 1
        assert sink.inspect(bench.rows([1], size=sizes[-1] + 1))
        with pytest.raises(PoisonedError, match="max_message_bytes"):
            sink.write(bench.rows([1], size=sizes[-1] + 1))


@pytest.mark.parametrize("compression", ["none", "zstd", "lz4", "snappy", "gzip"])
def test_sizes_are_those_of_the_broker(bench: Bench, compression: str) -> None:
    """GIVEN a topic with a limit THEN what is not refused is stored, alone and compressed, and
    only what is close to the limit or above it is refused."""
    bench.make(max_message_bytes="5000")
    rng = random.Random(1)
    texts = [bytes(rng.choices(b"0123456789", k=size)) for size in range(4500, 13_000, 100)]
    stored = []
    with bench.opened(compression=compression) as sink:
        for number, text in enumerate(texts):
            batch = changed(bench.rows([number]), "payload", [b"%d\r\n%s" % (number, text)])
            refused = sink.inspect(batch)
            if not refused:
                sink.write(batch)
                sink.flush()
                stored.append(number)
            else:
                assert "max.message.bytes of its topic is 5000" in refused[0].reason
    assert bench.numbers() == stored
    # Digits take about half of their bytes; snappy finds no repetitions.
    assert len(stored) >= (4 if compression in {"none", "snappy", "lz4"} else 40)


@pytest.mark.parametrize("transactional", [False, True])
def test_a_topic_that_takes_less_than_before(bench: Bench, transactional: bool) -> None:
    """GIVEN a limit that was lowered in the middle of a batch WHEN the broker refuses a message
    THEN the batch is sent again without it; WHEN the limit is raised THEN it is not refused."""
    bench.make()
    with bench.opened(transactional=transactional, compression="none") as sink:
        delivered(sink, bench.rows(range(3)))
        sink.open(position(2))
        assert sink.inspect(bench.rows([3], size=20_000)) == {}
        bench.alter(max_message_bytes="5000")
        sink.write(bench.rows([3], size=20_000))
        with pytest.raises(SinkUnreachableError, match="took more when the batch began"):
            sink.flush()
        sink.open(position(2))
        refused = sink.inspect(bench.rows([3, 4], size=20_000))
        assert list(refused) == [0, 1]
        assert refused[0].code == PoisonedError.code
        bench.alter(max_message_bytes="50000")
        batch = bench.rows([3], size=20_000)
        wait_for(lambda: not sink.inspect(batch), "the limit")
        assert delivered(sink, batch).messages == 1
    assert bench.numbers() == list(range(4))


def test_the_error_for_large_batches_names_the_setting_to_change(bench: Bench) -> None:
    bench.make(max_message_bytes="5000")
    batch = bench.rows(range(100), size=1000)
    with (
        bench.opened(compression="none", linger_ms=5000) as sink,
        pytest.raises(SinkRefusedError) as caught,
    ):
        delivered(sink, batch)
    assert "max_message_bytes: 5000" in caught.value.hint
    with bench.opened(compression="none", linger_ms=50, max_message_bytes=5000) as sink:
        write(sink, batch)
        sink.flush()
    assert bench.numbers() == list(range(100))


def test_a_full_queue_blocks_write_and_loses_nothing(bench: Bench) -> None:
    few = {"queue.buffering.max.messages": "100"}
    with bench.opened(settings=few) as sink:
        write(sink, bench.rows(range(5000)))
        assert sink.flush().messages == 5000
    assert bench.numbers() == list(range(5000))


def test_an_unreachable_cluster_is_an_error() -> None:
    settings = KafkaSink(type="kafka", bootstrap="127.0.0.1:1", timeout_s=5)
    with pytest.raises(SinkUnreachableError, match=r"127\.0\.0\.1:1"):
        probe(settings, name="test")
    for transactional in (False, True):
        sink = Kafka(
            settings.model_copy(update={"transactional": transactional}), Lane(pipeline="test")
        )
        with pytest.raises(SinkUnreachableError):
            sink.open(ORIGIN)
        with pytest.raises(SinkUnreachableError):
            write(sink, rows(range(1)))


def test_probe(bench: Bench) -> None:
    probe(bench.settings(), name="test")
    with pytest.raises(SinkRefusedError, match=r"no\.such\.setting"):
        probe(bench.settings(settings={"no.such.setting": "1"}), name="test")


def test_a_deleted_topic_is_named(bench: Bench) -> None:
    with bench.opened(timeout_s=60, settings={"topic.metadata.propagation.max.ms": "2000"}) as sink:
        write(sink, bench.rows(range(3)))
        sink.flush()
        admin = bench.admin()
        admin.delete_topics([bench.topic])[bench.topic].result(LONG_S)
        wait_for(lambda: bench.topic not in admin.list_topics(timeout=LONG_S).topics, "it is gone")
        with pytest.raises(SinkRefusedError, match=bench.topic):
            delivered(sink, bench.rows(range(3, 6)))
