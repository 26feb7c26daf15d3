"""The sink `redis` and the best batching of redis-py, with the same messages in the same run.

    python -m benchmarks.sink_redis [MESSAGES]

redis-py's best is a pipeline without a transaction. It repeats messages after a crash; the sink
writes each with the position that it reaches.
"""

from __future__ import annotations

import statistics
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import redis
from pydantic import SecretStr

from tailrace.message import MESSAGES
from tailrace.position import ORIGIN
from tailrace.sinks.contract import Lane
from tailrace.sinks.redis.settings import RedisSink
from tailrace.sinks.redis.sink import Redis
from tailrace.testing import EmbeddedRedis

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_BATCH = 4000
_ROUNDS = 3


def messages(count: int) -> list[pa.RecordBatch]:
    """Messages of 200 bytes with keys, of one stream."""
    return [_batch(start, min(_BATCH, count - start)) for start in range(0, count, _BATCH)]


def _batch(start: int, count: int) -> pa.RecordBatch:
    numbers = range(start, start + count)
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(pa.scalar(b"public.orders", pa.binary()), count),
            pa.array([b"%016x-0" % (number + 1) for number in numbers], pa.binary()),
            pa.array([b"%d" % number for number in numbers], pa.binary()),
            pa.array([b"%0200d" % number for number in numbers], pa.binary()),
            pa.array([number + 1 for number in numbers], pa.uint64()),
            pa.array([0] * count, pa.uint64()),
            pa.array([0] * count, pa.int64()),
            pa.array([1] * count, pa.uint64()),
            pa.nulls(count, pa.binary()),
        ],
        schema=MESSAGES,
    )


def deliver(server: EmbeddedRedis, batches: list[pa.RecordBatch], **keys: Any) -> None:
    """Through the sink."""
    sink = Redis(RedisSink(type="redis", url=SecretStr(server.url), **keys), Lane(pipeline="p"))
    sink.open(ORIGIN)
    for batch in batches:
        assert not sink.inspect(batch)
        sink.write(batch)
    receipt = sink.flush()
    assert receipt.messages == sum(batch.num_rows for batch in batches)
    sink.close()


def _rows(batch: pa.RecordBatch) -> Iterator[tuple[bytes, bytes, bytes, bytes]]:
    names = ("destination", "id", "key", "payload")
    return zip(*(batch.column(name).to_pylist() for name in names), strict=True)


def pipeline_of_entries(server: EmbeddedRedis, batches: list[pa.RecordBatch], size: int) -> None:
    """XADD through redis-py."""
    with redis.Redis(port=server.port) as client:
        for batch in batches:
            for start in range(0, batch.num_rows, size):
                with client.pipeline(transaction=False) as pipeline:
                    for stream, name, key, payload in _rows(batch.slice(start, size)):
                        pipeline.xadd(stream, {"id": name, "key": key, "payload": payload})
                    pipeline.execute()


def pipeline_of_keys(server: EmbeddedRedis, batches: list[pa.RecordBatch], size: int) -> None:
    """SET through redis-py."""
    with redis.Redis(port=server.port) as client:
        for batch in batches:
            for start in range(0, batch.num_rows, size):
                with client.pipeline(transaction=False) as pipeline:
                    for name, _, key, payload in _rows(batch.slice(start, size)):
                        pipeline.set(name + b":" + key, payload)
                    pipeline.execute()


def rate(server: EmbeddedRedis, count: int, work: Callable[[], None]) -> float:
    """Messages per second, the median of several rounds."""
    rates = []
    for _ in range(_ROUNDS):
        with redis.Redis(port=server.port) as client:
            client.flushall()
        start = time.perf_counter()
        work()
        rates.append(count / (time.perf_counter() - start))
    return statistics.median(rates)


def main(count: int) -> None:
    batches = messages(count)
    with EmbeddedRedis(appendonly="no") as server:
        for mode, raw in (("stream", pipeline_of_entries), ("string", pipeline_of_keys)):
            best = max(
                rate(server, count, partial(raw, server, batches, size))
                for size in (200, 1000, 4000)
            )
            own = rate(server, count, partial(deliver, server, batches, mode=mode))
            print(f"{mode:8} sink {own:9,.0f}/s, redis-py {best:9,.0f}/s, ratio {own / best:.2f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200_000)
