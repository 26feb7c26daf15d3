"""From the commit in PostgreSQL to the message in a JetStream consumer's hands.

Everything runs as users run it, on this machine: capture, Spark, JetStream, a writer that commits
at a steady rate, and a consumer in a process of its own. The message carries its commit time; both
ends read the same clock.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from datetime import datetime
from typing import TYPE_CHECKING

import nats
import numpy as np
import orjson
import psycopg
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from benchmarks.delivery import STREAM, Pipelines, to_nats
from benchmarks.report import Report
from benchmarks.source import Source, capture, log_folder, source
from tailrace.testing import EmbeddedNats

if TYPE_CHECKING:
    from multiprocessing.queues import Queue

    from nats.aio.msg import Msg

_SECONDS, _WARM_S = 60, 20
_ROW = (
    "INSERT INTO item SELECT %s + g, 'name', 'user@example.com', 1, 1.25, true, "
    '\'{"a": 1, "b": "text"}\', now() FROM generate_series(1, %s) g'
)


def run(quick: bool) -> Report:
    """`p50_ms`, `p99_ms` at 1,000 changes/s; `p50_10k_ms`, `p99_10k_ms` at 10,000."""
    report = Report("latency: commit in PostgreSQL → message received")
    seconds, warm = (5, 5) if quick else (_SECONDS, _WARM_S)
    with source() as made, log_folder() as folder, EmbeddedNats() as server:
        made.create_slot("latency")
        child = capture(made, "latency", folder)
        child.wait_until_streaming()
        pipelines = Pipelines(folder, bench=to_nats(server.url, encoding="json"))
        made.connection.execute("CALL fill(10, 10)")
        pipelines.wait(lambda: pipelines.events("bench") >= 100)
        for rate, rows, suffix in ((1_000, 1, ""), (10_000, 10, "_10k")):
            delays = measure(made, server.url, rate=rate, rows=rows, seconds=seconds, warm=warm)
            p50, p99 = np.percentile(delays, (50, 99))
            report.add(f"{rate:,} changes/s", f"{len(delays):,} messages", f"{rows} a transaction")
            report.figure(f"p50{suffix}_ms", float(p50))
            report.figure(f"p99{suffix}_ms", float(p99))
        pipelines.stop()
        child.process.terminate()
        child.finish()
    return report


def measure(
    made: Source,
    url: str,
    *,
    rate: int,
    rows: int,
    seconds: int,
    warm: int,
    stream: str = STREAM,
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The delays in milliseconds of all changes committed after the warm-up."""
    ready, stop = multiprocessing.Event(), multiprocessing.Event()
    answers: Queue[list[tuple[float, float]]] = multiprocessing.Queue()
    consumer = multiprocessing.Process(
        target=_consume, args=(url, stream, ready, stop, answers), daemon=True
    )
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


def _consume(url: str, stream: str, ready: object, stop: object, answers: object) -> None:
    asyncio.run(_consumer(url, stream, ready, stop, answers))


async def _consumer(url: str, stream: str, ready: object, stop: object, answers: object) -> None:
    client = await nats.connect(url)
    found: list[tuple[float, float]] = []

    async def on_message(message: Msg) -> None:
        now = time.time()
        text = orjson.loads(message.data)["timestamp"]
        found.append((datetime.fromisoformat(text).timestamp(), now))

    await client.jetstream().subscribe(
        f"{stream.lower()}.>",
        stream=stream,
        cb=on_message,
        config=ConsumerConfig(ack_policy=AckPolicy.NONE, deliver_policy=DeliverPolicy.NEW),
    )
    ready.set()  # type: ignore[attr-defined]
    while not stop.is_set():  # type: ignore[attr-defined]
        await asyncio.sleep(0.1)
    answers.put(found)  # type: ignore[attr-defined]
    await client.close()
