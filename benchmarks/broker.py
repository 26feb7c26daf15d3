"""Kafka's clients on tables: what librdkafka gets out of the broker, against COPY and Kafka itself.

Records of 1 KB, in batches of 100, acks=all. COPY of the same rows into the same table is the
reference for producing, COPY of them to nowhere for consuming; both are taken in turns with the
broker, as the machine's speed changes. A real Kafka, where there is one, gets the same load.
"""

from __future__ import annotations

import contextlib
import resource
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from statistics import median
from typing import TYPE_CHECKING, Any

import psutil
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.report import Report
from benchmarks.source import SETTINGS
from tailrace.broker.tables import records
from tailrace.testing import EmbeddedKafka, EmbeddedPostgres
from tailrace.testing.process import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

_RECORDS, _ROUNDS = 200_000, 3
_CONNECTIONS, _MANY_CONNECTIONS = 1000, 10_000
_API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)
"""A request that every client sends first."""
_BATCH, _PIECE = 100, 1000
_VALUE = (b"0123456789abcdef" * 64)[:1000]


def run(quick: bool) -> Report:
    """`produce_vs_copy`, `consume_vs_copy`, rates, the delay of a long poll, idle memory."""
    report = Report("broker: 1 KB records through librdkafka, batches of 100, acks=all")
    count = 20_000 if quick else _RECORDS
    with EmbeddedPostgres(18, settings=SETTINGS) as server:
        _measure(server, count, report, quick=quick)
        with _broker(server.dsn("postgres")) as (bootstrap, pid):
            _idle(bootstrap, pid, report)
            _idle_many(bootstrap, pid, report)
    if (reason := EmbeddedKafka.unavailable()) is None:
        _compare(count, report)
    else:
        report.add("Kafka", "none", reason)
    return report


def _measure(server: EmbeddedPostgres, count: int, report: Report, *, quick: bool) -> None:
    with _broker(server.dsn("postgres")) as (bootstrap, _):
        taken = [_round(server, bootstrap, number, count) for number in range(_ROUNDS)]
        names = ("COPY into the table", "produce", "COPY to nowhere", "consume")
        copied, produced, read, consumed = (median(column) for column in zip(*taken, strict=True))
        for name, rate in zip(names, (copied, produced, read, consumed), strict=True):
            report.add(name, f"{rate:,.0f} records/s")
        report.figure("produce_vs_copy", median(each[1] / each[0] for each in taken))
        report.figure("consume_vs_copy", median(each[3] / each[2] for each in taken))
        report.figure("produce_per_s", produced)
        report.figure("consume_per_s", consumed)
        _long_poll(bootstrap, report, 20 if quick else 300)


def _compare(count: int, report: Report) -> None:
    with EmbeddedKafka(fast=True) as kafka:
        theirs = []
        for number in range(_ROUNDS):
            topic = _topic(kafka.bootstrap, number)
            theirs.append(
                (_produce(kafka.bootstrap, topic, count), _consume(kafka.bootstrap, topic, count))
            )
        faster, quicker = (median(column) for column in zip(*theirs, strict=True))
        report.add("Kafka, produce", f"{faster:,.0f} records/s")
        report.add("Kafka, consume", f"{quicker:,.0f} records/s")
        report.figure("produce_vs_kafka", report.figures["produce_per_s"] / faster)
        report.figure("consume_vs_kafka", report.figures["consume_per_s"] / quicker)


@contextlib.contextmanager
def _broker(dsn: str) -> Iterator[tuple[str, int]]:
    command = [sys.executable, "-m", "tailrace.cli", "broker", "--dsn", dsn]
    subprocess.run([*command, "--init"], check=True, stdout=subprocess.DEVNULL)
    address = f"127.0.0.1:{free_port()}"
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen([*command, "--listen", address], stdout=said, stderr=said)
        try:
            while True:
                with contextlib.suppress(OSError):
                    _connection(address).close()
                    break
                assert child.poll() is None
                time.sleep(0.1)
            yield address, child.pid
        finally:
            child.terminate()
            child.wait(30)


def _connection(address: str) -> socket.socket:
    host, _, port = address.partition(":")
    return socket.create_connection((host, int(port)), 10)


def _topic(bootstrap: str, number: int) -> str:
    name = f"bench-{number}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
    return name


def _round(
    server: EmbeddedPostgres, bootstrap: str, number: int, count: int
) -> tuple[float, float, float, float]:
    """Records a second: COPY into the table, produce, COPY to nowhere, consume."""
    topic = _topic(bootstrap, number)
    with server.connect("postgres") as connection:
        copied = _copy_in(connection, -1 - number, count)
        produced = _produce(bootstrap, topic, count)
        connection.execute("VACUUM ANALYZE kafka.messages")
        row = connection.execute("SELECT id FROM kafka.topics WHERE name = %s", (topic,)).fetchone()
        assert row is not None
        read = _copy_out(server, row[0], count)
        consumed = _consume(bootstrap, topic, count)
    return copied, produced, read, consumed


def _copy_in(connection: psycopg.Connection, topic_id: int, count: int) -> float:
    """The rows are made before the clock runs; they go out in pieces, as psql's would."""
    batch = records.Batch(
        records=tuple((1_700_000_000_000, None, _VALUE, []) for _ in range(_PIECE)),
        size=0,
        producer_id=-1,
        producer_epoch=-1,
        sequence=-1,
    )
    pieces = [records.copy_rows(batch, topic_id, 0, first) for first in range(0, count, _PIECE)]
    began = time.perf_counter()
    statement = "COPY kafka.messages FROM STDIN (FORMAT binary)"
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        copy.write(records.SIGNATURE)
        for piece in pieces:
            copy.write(piece)
        copy.write(records.TRAILER)
    return count / (time.perf_counter() - began)


def _copy_out(server: EmbeddedPostgres, topic_id: int, count: int) -> float:
    query = f"COPY (SELECT * FROM kafka.messages WHERE topic_id = {topic_id}) TO STDOUT"
    command = [str(server.binary("psql")), server.dsn("postgres"), "-c", query]
    began = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return count / (time.perf_counter() - began)


def _produce(bootstrap: str, topic: str, count: int) -> float:
    failed: list[Any] = []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "batch.num.messages": _BATCH,
            "linger.ms": 5,
            "queue.buffering.max.messages": 100_000,
            "on_delivery": lambda error, _: failed.append(error) if error is not None else None,
        }
    )
    producer.list_topics(topic, 30)
    began = time.perf_counter()
    for _ in range(count):
        while True:
            try:
                producer.produce(topic, _VALUE, partition=0)
                break
            except BufferError:
                producer.poll(0.01)
    assert producer.flush(300) == 0
    taken = time.perf_counter() - began
    assert failed == []
    return count / taken


def _consume(bootstrap: str, topic: str, count: int) -> float:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench"})
    consumer.list_topics(topic, 30)
    began = time.perf_counter()
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found = 0
    while found < count:
        messages = consumer.consume(1000, 30)
        assert messages
        found += len(messages)
    taken = time.perf_counter() - began
    consumer.close()
    return count / taken


def _long_poll(bootstrap: str, report: Report, count: int) -> None:
    """From `produce` to the hands of a consumer that waits."""
    topic = _topic(bootstrap, _ROUNDS)
    delays: list[float] = []
    ready = threading.Event()

    def wait() -> None:
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "poll"})
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        ready.set()
        while len(delays) < count:
            message: Any = consumer.poll(30)
            assert message is not None
            delays.append(time.perf_counter() - float(message.value()))
        consumer.close()

    thread = threading.Thread(target=wait)
    thread.start()
    ready.wait(30)
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0})
    for _ in range(count):
        producer.produce(topic, str(time.perf_counter()).encode(), partition=0)
        producer.flush(30)
        time.sleep(0.02)
    thread.join(60)
    report.figure("longpoll_p50_ms", median(delays) * 1000, "produce → consumer that waits")


def _idle(bootstrap: str, pid: int, report: Report) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(_CONNECTIONS):
            stack.enter_context(_connection(bootstrap))
        time.sleep(1)
        size = psutil.Process(pid).memory_info().rss / 2**20
    report.figure("idle_mb", size, f"the broker, with {_CONNECTIONS:,} idle connections")


def _idle_many(bootstrap: str, pid: int, report: Report) -> None:
    """Connections that have sent a request and got its response, as those of real clients."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (_MANY_CONNECTIONS + 1000, hard))
    with contextlib.ExitStack() as stack:
        for _ in range(_MANY_CONNECTIONS):
            connection = stack.enter_context(_connection(bootstrap))
            connection.sendall(_API_VERSIONS)
            assert connection.recv(1 << 16)
        size = psutil.Process(pid).memory_info().rss / 2**20
    report.figure("idle_10k_mb", size, f"the same with {_MANY_CONNECTIONS:,}, each after a request")
