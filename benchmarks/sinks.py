"""Sinks and their own clients at their best batching, with the same messages in the same run.

The clients repeat messages after a crash and know no keys. The sinks store positions with the
messages (Redis, PostgreSQL, files), keep a key in order and note what was accepted (HTTP, RabbitMQ,
AWS, Pub/Sub), or write versions (OpenSearch).
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import statistics
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import amqp
import httpcore
import opensearchpy
import psycopg
import pyarrow as pa
import redis
import zstandard
from opensearchpy import helpers
from pyarrow import parquet

from benchmarks import messages, sinks_aws, sinks_pubsub
from benchmarks.report import Report
from tailrace.position import ORIGIN
from tailrace.sinks.contract import Lane
from tailrace.sinks.registry import SINKS
from tailrace.testing import (
    EmbeddedOpenSearch,
    EmbeddedPostgres,
    EmbeddedRabbitMQ,
    EmbeddedRedis,
    HttpReceiver,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

    from tailrace.testing import HttpRequest

Batches = list[pa.RecordBatch]
_BATCH = 4000
_ROUNDS = 3
_KEYS = 5000
_CONCURRENCY = 16


def run(quick: bool) -> Report:
    """Sink ÷ client: `http_ratio`, `redis_ratio`, `redis_string_ratio`, `rabbitmq_ratio`,
    `rabbitmq_quorum_ratio`, `postgres_ratio`, `opensearch_ratio`, `sqs_ratio`, `kinesis_ratio`,
    `pubsub_ratio`, `pubsub_unordered_ratio`, `file_ratio`, `file_jsonl_ratio`."""
    report = Report("sinks: messages per second, and the sink's rate ÷ that of its own client")
    count = 4_000 if quick else 200_000
    _http(report, _messages(count // 20, b"/"))
    with EmbeddedRedis(appendonly="no") as server:
        for mode, name, client in (
            ("stream", "redis", _xadd),
            ("string", "redis_string", _set),
        ):
            batches = _messages(count, b"public.orders")
            settings = {"url": server.url, "mode": mode}
            reset = partial(_flush_redis, server)
            best = max(
                _rate(partial(client, server, batches, size), batches, reset)
                for size in (200, 1000, 4000)
            )
            _compare(report, name, _sink("redis", settings, batches, reset), best)
    _rabbitmq(report, _messages(count // 2, b"/orders"))
    _postgres(report, _messages(count, b"public.orders"))
    opensearch(report, _messages(count // 2, b"orders"))
    for kind, share in (("sqs", 10), ("kinesis", 2)):
        _aws(report, kind, count // share)
    pubsub(report, count // 10)
    files(report, _messages(count, b"public/orders"))
    return report


def _messages(count: int, destination: bytes) -> Batches:
    """Messages of 200 bytes of one destination."""
    return [
        _batch(start, min(_BATCH, count - start), destination) for start in range(0, count, _BATCH)
    ]


def _batch(start: int, count: int, destination: bytes) -> pa.RecordBatch:
    numbers = range(start, start + count)
    return messages.numbered(
        numbers, destination=lambda _: destination, payload=messages.text, keys=_KEYS, step=8
    )


def _rate(work: Callable[[], None], batches: Batches, reset: Callable[[], None]) -> float:
    """Messages per second, the median of several rounds."""
    rates, count = [], sum(batch.num_rows for batch in batches)
    for _ in range(_ROUNDS):
        reset()
        start = time.perf_counter()
        work()
        rates.append(float(count / (time.perf_counter() - start)))
    return statistics.median(rates)


def _sink(
    kind: str,
    settings: dict[str, Any],
    batches: Batches,
    reset: Callable[[], None],
    *,
    folder: Path | None = None,
) -> float:
    """The rate of a sink."""
    sink_type = SINKS.find(kind)
    validated = sink_type.settings.model_validate({"type": kind, **settings})

    def deliver() -> None:
        sink = sink_type.open(validated, Lane(pipeline="p", folder=folder))
        sink.open(ORIGIN)
        for batch in batches:
            assert not sink.inspect(batch)
            sink.write(batch)
        receipt = sink.flush()
        assert receipt.messages == sum(batch.num_rows for batch in batches)
        sink.close()

    return _rate(deliver, batches, reset)


def _compare(report: Report, name: str, own: float, best: float) -> None:
    report.add(f"{name}: sink", f"{own:,.0f}/s", f"its client {best:,.0f}/s")
    report.figure(f"{name}_ratio", own / best)


def _columns(batch: pa.RecordBatch, *names: str) -> Iterator[tuple[Any, ...]]:
    return zip(*(batch.column(name).to_pylist() for name in names), strict=True)


class _Discarding(HttpReceiver):
    def keep(self, request: HttpRequest) -> None:
        """Nothing: memory would grow."""


def _serve(port: Connection) -> None:
    with _Discarding() as receiver:
        port.send(receiver.port)
        threading.Event().wait()


def _http(report: Report, batches: Batches) -> None:
    """One message per request, over 16 connections; the receiver is a process of its own."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs,))
    process.start()
    try:
        url = f"http://127.0.0.1:{ours.recv()}/"
        settings = {"url": url, "allow_private": True, "concurrency": _CONCURRENCY}
        best = _rate(partial(_post, url, batches), batches, lambda: None)
        _compare(report, "http", _sink("http", settings, batches, lambda: None), best)
    finally:
        process.kill()
        process.join()


def _post(url: str, batches: Batches) -> None:
    """POST through httpcore, from as many threads, each with a connection."""
    own = threading.local()

    def send(payload: bytes, name: bytes) -> None:
        if not hasattr(own, "pool"):
            own.pool = httpcore.ConnectionPool(max_connections=1)
        headers = [(b"content-type", b"application/json"), (b"webhook-id", name)]
        assert own.pool.request("POST", url, headers=headers, content=payload).status == 200

    with ThreadPoolExecutor(_CONCURRENCY) as pool:
        for batch in batches:
            columns = [batch.column(name).to_pylist() for name in ("payload", "id")]
            list(pool.map(send, *columns))


def _aws(report: Report, kind: str, count: int) -> None:
    with sinks_aws.receiver() as url:
        batches = _messages(count, sinks_aws.destination_of(kind, url))
        best = _rate(partial(sinks_aws.send, kind, url, batches), batches, lambda: None)
        settings = sinks_aws.settings_of(kind, url)
        _compare(report, kind, _sink(kind, settings, batches, lambda: None), best)


def pubsub(report: Report, count: int) -> None:
    """With ordering keys a request has one key, of 5,000; without, as many messages as it may."""
    with sinks_pubsub.server() as port:
        for ordering, name in ((True, "pubsub"), (False, "pubsub_unordered")):
            batches = _messages(count, sinks_pubsub.TOPIC)
            send = partial(sinks_pubsub.send, port, batches, ordering=ordering)
            sizes = (100,) if ordering else (100, 1000)
            best = max(_rate(partial(send, rows=size), batches, lambda: None) for size in sizes)
            settings = sinks_pubsub.settings_of(port, ordering=ordering)
            _compare(report, name, _sink("pubsub", settings, batches, lambda: None), best)


def _flush_redis(server: EmbeddedRedis) -> None:
    with redis.Redis(port=server.port) as client:
        client.flushall()


def _xadd(server: EmbeddedRedis, batches: Batches, size: int) -> None:
    """XADD through redis-py."""
    with redis.Redis(port=server.port) as client:
        for batch in batches:
            for start in range(0, batch.num_rows, size):
                rows = _columns(batch.slice(start, size), "destination", "id", "key", "payload")
                with client.pipeline(transaction=False) as pipeline:
                    for stream, name, key, payload in rows:
                        pipeline.xadd(stream, {"id": name, "key": key, "payload": payload})
                    pipeline.execute()


def _set(server: EmbeddedRedis, batches: Batches, size: int) -> None:
    """SET through redis-py."""
    with redis.Redis(port=server.port) as client:
        for batch in batches:
            for start in range(0, batch.num_rows, size):
                rows = _columns(batch.slice(start, size), "destination", "key", "payload")
                with client.pipeline(transaction=False) as pipeline:
                    for name, key, payload in rows:
                        pipeline.set(name + b":" + key, payload)
                    pipeline.execute()


def _rabbitmq(report: Report, batches: Batches) -> None:
    """Persistent messages to a durable queue, each confirmed."""
    with EmbeddedRabbitMQ() as server, tempfile.TemporaryDirectory() as folder:
        for queue_type, name in (("classic", "rabbitmq"), ("quorum", "rabbitmq_quorum")):
            reset = partial(_declare_queue, server, queue_type, Path(folder))
            best = max(
                _rate(partial(_confirmed, server, batches, size), batches, reset)
                for size in (500, 2000, 8000)
            )
            settings = {"url": server.url, "exchange": "", "declare": "none"}
            own = _sink("rabbitmq", settings, batches, reset, folder=Path(folder))
            _compare(report, name, own, best)


def _declare_queue(server: EmbeddedRabbitMQ, queue_type: str, folder: Path) -> None:
    """An empty queue, and nothing noted as accepted."""
    for path in folder.iterdir():
        path.unlink()
    with amqp.Connection(f"127.0.0.1:{server.port}", login_method="PLAIN") as client:
        arguments = {"x-queue-type": queue_type}
        client.channel().queue_delete("orders")
        client.channel().queue_declare(
            "orders", durable=True, auto_delete=False, arguments=arguments
        )


def _confirmed(server: EmbeddedRabbitMQ, batches: Batches, size: int) -> None:
    """Publish through py-amqp, with so many messages in flight."""
    with amqp.Connection(f"127.0.0.1:{server.port}", login_method="PLAIN") as client:
        channel = client.channel()
        channel.confirm_select()
        flying: set[int] = set()

        def confirm(tag: int, multiple: bool) -> None:
            flying.difference_update(
                [each for each in flying if each <= tag] if multiple else [tag]
            )

        channel.events["basic_ack"].add(confirm)
        tag = 0
        for batch in batches:
            for queue, name, payload in _columns(batch, "destination", "id", "payload"):
                tag += 1
                flying.add(tag)
                message = amqp.Message(
                    payload,
                    content_type="application/json",
                    delivery_mode=2,
                    message_id=name.decode(),
                )
                channel.basic_publish(message, "", queue[1:].decode(), mandatory=True)
                while len(flying) >= size:
                    client.drain_events(timeout=60)
        while flying:
            client.drain_events(timeout=60)


def _postgres(report: Report, batches: Batches) -> None:
    """A table of changes, by COPY."""
    with EmbeddedPostgres(18) as server:
        name = server.create_database("copy")
        dsn = server.dsn(name)

        def reset() -> None:
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute("DROP TABLE IF EXISTS raw, wal_events")
                connection.execute("DROP SCHEMA IF EXISTS tailrace CASCADE")
                connection.execute(
                    "CREATE TABLE raw (pipeline text, id text, commit_lsn bigint, commit_idx "
                    "bigint, destination text, key text, payload jsonb, committed_at timestamptz)"
                )

        best = _rate(partial(_copy, dsn, batches), batches, reset)
        settings = {"dsn": dsn, "partition": "month"}
        _compare(report, "postgres", _sink("postgres", settings, batches, reset), best)


def _copy(dsn: str, batches: Batches) -> None:
    """COPY through psycopg, row by row, in one transaction."""
    with (
        psycopg.connect(dsn) as connection,
        connection.cursor() as cursor,
        cursor.copy("COPY raw FROM STDIN") as copy,
    ):
        for batch in batches:
            rows = _columns(batch, "id", "lsn", "destination", "key", "payload")
            for (name, lsn, destination, key, payload), when in zip(
                rows, repeat("2026-01-01 00:00:00+00")
            ):
                texts = (each.decode() for each in (destination, key, payload))
                copy.write_row(("p", name.decode(), lsn, 0, *texts, when))


def opensearch(report: Report, batches: Batches) -> None:
    """Documents with versions, in one index. The client gets its documents as text."""
    with EmbeddedOpenSearch(fast=True) as server:
        reset = partial(_new_index, server)
        best = max(
            _rate(partial(_bulk, server, batches, size, threads), batches, reset)
            for size, threads in ((1000, 1), (1000, 4), (4000, 4))
        )
        settings = {"url": server.url}
        _compare(report, "opensearch", _sink("opensearch", settings, batches, reset), best)


def _new_index(server: EmbeddedOpenSearch) -> None:
    server.call("DELETE", "/orders")
    server.call("PUT", "/orders", {"settings": {"number_of_shards": 1}})


def _bulk(server: EmbeddedOpenSearch, batches: Batches, size: int, threads: int) -> None:
    """The helpers of opensearch-py: `streaming_bulk`, or `parallel_bulk` with several threads."""

    def expanded(row: tuple[bytes, bytes, bytes, int]) -> tuple[dict[str, Any], str]:
        index, key, payload, lsn = row
        where = {"_index": index.decode(), "_id": key.decode()}
        return {
            "index": {**where, "version": lsn, "version_type": "external_gte"}
        }, payload.decode()

    rows = chain.from_iterable(
        _columns(batch, "destination", "key", "payload", "lsn") for batch in batches
    )
    with opensearchpy.OpenSearch(server.url, pool_maxsize=threads, timeout=60) as client:
        common: dict[str, Any] = {
            "chunk_size": size,
            "expand_action_callback": expanded,
            "raise_on_error": False,
        }
        results = (
            helpers.streaming_bulk(client, rows, **common)
            if threads == 1
            else helpers.parallel_bulk(client, rows, thread_count=threads, **common)
        )
        # Several threads write one document in any order: conflicts are no failures.
        assert all(done or "version_conflict" in str(found) for done, found in results)


def files(report: Report, batches: Batches) -> None:
    """Parquet and JSON Lines, each with zstd, fsynced."""
    with tempfile.TemporaryDirectory() as folder:
        for form, name, client in (
            ("parquet", "file", _write_parquet),
            ("jsonl", "file_jsonl", _write_lines),
        ):
            target = Path(folder) / name
            reset = partial(_new_folder, target)
            best = _rate(partial(client, target / "one", batches), batches, reset)
            settings = {"url": str(target), "format": form}
            _compare(report, name, _sink("file", settings, batches, reset), best)


def _new_folder(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()


def _write_parquet(path: Path, batches: Batches) -> None:
    """pyarrow, with its defaults, from the same columns."""
    names = ["destination", "id", "key", "payload", "lsn", "ordinal", "committed_at"]
    with path.open("wb") as file:
        parquet.write_table(pa.Table.from_batches(batches).select(names), file, compression="zstd")
        os.fsync(file.fileno())


def _write_lines(path: Path, batches: Batches) -> None:
    """A stream of zstd, with a write per batch."""
    with path.open("wb") as file:
        with zstandard.ZstdCompressor(3).stream_writer(file, closefd=False) as stream:
            for batch in batches:
                stream.write(b"\n".join([*batch["payload"].to_pylist(), b""]))
        os.fsync(file.fileno())
