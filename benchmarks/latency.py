"""From the commit in PostgreSQL to the message in a consumer's hands.

Everything runs as users run it, on this machine: capture, Spark, JetStream or Kafka, a writer that
commits at a steady rate, and a consumer in a process of its own. The message carries its commit
time; both ends read the same clock. Each case has servers and a pipeline of its own, one after
another.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import socket
import time
import uuid
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import nats
import numpy as np
import orjson
import psycopg
from confluent_kafka import Consumer, KafkaException, TopicPartition
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from benchmarks.delivery import STREAM, running, to_nats
from benchmarks.report import Report
from benchmarks.source import Source, log_folder, source
from tailrace.testing import EmbeddedKafka, EmbeddedNats

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.queues import Queue
    from multiprocessing.synchronize import Event

    Answers = Queue[list[tuple[float, float]]]
    Receive = Callable[[Event, Event, Answers], None]
    """Sets the first event when it receives; after the second, answers with (commit, arrival)."""

_SECONDS, _WARM_S = 60, 20
_KAFKA_WARM_S = 60
"""Until then the second compiler of Kafka's JVM takes a core."""
_QUICK_S = 3
_ROW = (
    "INSERT INTO item SELECT %s + g, 'name', 'user@example.com', 1, 1.25, true, "
    '\'{"a": 1, "b": "text"}\', now() FROM generate_series(1, %s) g'
)
_SQL = {
    "where": "op <> 'delete' AND quantity > 0",
    "select": ["id", "name", "upper(email) AS email", "price * quantity AS total"],
}
"""Every row passes."""
_TOPIC = "cdc.item"


def run(quick: bool) -> Report:
    """`p50_ms`, `p99_ms` at 1,000 changes/s, and the same with a suffix for each further case.

    `_10k`: at 10,000 changes/s. `_sql`: with `where` and `select`. `_lanes`: with four lanes.
    `_kafka`: into Kafka.
    """
    report = Report("latency: commit in PostgreSQL → message received")
    for case in CASES.values():
        case(report, quick)
    return report


def _plain(report: Report, quick: bool) -> None:
    _jetstream(report, quick, {"": (1_000, 1), "_10k": (10_000, 10)})


def _sql(report: Report, quick: bool) -> None:
    _jetstream(report, quick, {"_sql": (1_000, 1)}, **_SQL)


def _lanes(report: Report, quick: bool) -> None:
    _jetstream(report, quick, {"_lanes": (1_000, 1)}, lanes=4)


def _jetstream(
    report: Report, quick: bool, loads: dict[str, tuple[int, int]], **pipeline: object
) -> None:
    """The loads, each a rate and the rows per transaction, through a pipeline into a stream."""
    with EmbeddedNats() as server:
        settings = to_nats(server.url, STREAM, encoding="json", **pipeline)
        warm = _QUICK_S if quick else _WARM_S
        _case(report, settings, from_nats(server.url), loads, quick=quick, warm=warm)


def _kafka(report: Report, quick: bool) -> None:
    if (reason := EmbeddedKafka.unavailable()) is not None:
        report.add("Kafka", "none", reason)
        return
    with EmbeddedKafka(fast=True) as server:
        sink = {"type": "kafka", "bootstrap": server.bootstrap, "topic": _TOPIC}
        receive = partial(_consume_kafka, server.bootstrap)
        warm = _QUICK_S if quick else _KAFKA_WARM_S
        settings = {"sink": sink, "encoding": "json"}
        _case(report, settings, receive, {"_kafka": (1_000, 1)}, quick=quick, warm=warm)


CASES: dict[str, Callable[[Report, bool], None]] = {
    "plain": _plain,
    "sql": _sql,
    "lanes": _lanes,
    "kafka": _kafka,
}


def _case(
    report: Report,
    pipeline: dict[str, Any],
    receive: Receive,
    loads: dict[str, tuple[int, int]],
    *,
    quick: bool,
    warm: int,
) -> None:
    seconds = _QUICK_S if quick else _SECONDS
    with source() as made, log_folder() as folder, running(made, "latency", folder, pipeline):
        for suffix, (rate, rows) in loads.items():
            delays = measure(made, receive, rate=rate, rows=rows, seconds=seconds, warm=warm)
            p50, p99 = np.percentile(delays, (50, 99))
            report.add(f"{rate:,} changes/s", f"{len(delays):,} messages", f"{rows} a transaction")
            report.figure(f"p50{suffix}_ms", float(p50))
            report.figure(f"p99{suffix}_ms", float(p99))


def measure(
    made: Source, receive: Receive, *, rate: int, rows: int, seconds: int, warm: int
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The delays in milliseconds of all changes committed after the warm-up."""
    ready, stop = multiprocessing.Event(), multiprocessing.Event()
    answers: Answers = multiprocessing.Queue()
    consumer = multiprocessing.Process(target=receive, args=(ready, stop, answers), daemon=True)
    consumer.start()
    assert ready.wait(60)
    began = time.time()
    written = _write(made.dsn, rate, rows, warm + seconds)
    time.sleep(3)
    stop.set()
    found = np.array(answers.get(timeout=60))
    consumer.join(10)
    if len(found) < written:
        raise RuntimeError(f"{written} changes were committed, {len(found)} received")
    counted = found[found[:, 0] >= began + warm]
    delays: np.ndarray[tuple[int], np.dtype[np.float64]] = (counted[:, 1] - counted[:, 0]) * 1000
    return delays


def _write(dsn: str, rate: int, rows: int, seconds: float) -> int:
    """Commit at a steady rate; lost time is caught up."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        first = connection.execute("SELECT coalesce(max(id), 0) FROM item").fetchone()
        assert first is not None
        key, began, done = int(first[0]), time.perf_counter(), 0
        while (now := time.perf_counter() - began) < seconds:
            if done > now * rate:
                time.sleep(done / rate - now)
            connection.execute(_ROW, (key + done, rows))
            done += rows
    if done < 0.97 * rate * seconds:
        raise RuntimeError(f"the writer reached {done / seconds:,.0f} changes/s of {rate:,}")
    return done


def _committed(message: bytes) -> float:
    text: str = orjson.loads(message)["timestamp"]
    return datetime.fromisoformat(text).timestamp()


def from_nats(url: str, stream: str = STREAM) -> Receive:
    """What a stream receives from now on."""
    return partial(_consume_nats, url, stream)


def _consume_nats(url: str, stream: str, ready: Event, stop: Event, answers: Answers) -> None:
    """A push consumer of JetStream, read from the socket.

    A client library in Python takes a core for 10,000 messages/s, which the pipeline would lack.
    Messages are parsed after the run.
    """
    inbox = f"_INBOX.{uuid.uuid4().hex}"
    host = urlsplit(url)
    with socket.create_connection((host.hostname, host.port)) as line:
        line.sendall(b'CONNECT {"verbose":false}\r\nSUB %s 1\r\nPING\r\n' % inbox.encode())
        asyncio.run(_add_consumer(url, stream, inbox))
        line.settimeout(0.1)
        ready.set()
        chunks: list[tuple[float, bytes]] = []
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                data = line.recv(1 << 20)
                chunks.append((time.time(), data))
    answers.put(_arrivals(chunks))


async def _add_consumer(url: str, stream: str, inbox: str) -> None:
    client = await nats.connect(url)
    config = ConsumerConfig(
        deliver_subject=inbox, ack_policy=AckPolicy.NONE, deliver_policy=DeliverPolicy.NEW
    )
    await client.jetstream().add_consumer(stream, config)
    await client.close()


def _arrivals(chunks: list[tuple[float, bytes]]) -> list[tuple[float, float]]:
    """Commit and arrival of each message. A message arrives with its last byte."""
    data = b"".join(chunk for _, chunk in chunks)
    ends = np.cumsum([len(chunk) for _, chunk in chunks])
    times = [at for at, _ in chunks]
    found, position = [], 0
    while (line_end := data.find(b"\r\n", position)) >= 0:
        words = data[position:line_end].split()
        position = line_end + 2
        if words and words[0] in {b"MSG", b"HMSG"}:
            size = int(words[-1])
            header = int(words[-2]) if words[0] == b"HMSG" else 0
            payload = data[position + header : position + size]
            position += size + 2
            arrived = times[int(np.searchsorted(ends, position))]
            found.append((_committed(payload), arrived))
    return found


def _consume_kafka(bootstrap: str, ready: Event, stop: Event, answers: Answers) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "latency"})
    # The end as an offset: OFFSET_END would be looked up only with the first fetch.
    _, end = consumer.get_watermark_offsets(TopicPartition(_TOPIC, 0), 30)
    consumer.assign([TopicPartition(_TOPIC, 0, end)])
    found: list[tuple[float, float]] = []
    ready.set()
    while not stop.is_set():
        message: Any = consumer.poll(0.1)
        if message is None:
            continue
        if message.error():
            raise KafkaException(message.error())
        now = time.time()
        found.append((_committed(message.value()), now))
    answers.put(found)
    consumer.close()
