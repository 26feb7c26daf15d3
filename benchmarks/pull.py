"""Consumers that fetch over HTTP: how many messages per second, and how soon they receive one."""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import statistics
import tempfile
import threading
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import psutil
import uvicorn

from benchmarks import messages
from benchmarks.report import Report
from tailrace.config import Config
from tailrace.observe.endpoints import settings
from tailrace.observe.kept import SlotFigures
from tailrace.position import ORIGIN
from tailrace.run.endpoints import Endpoints
from tailrace.run.overview import Overview
from tailrace.run.pull_endpoints import clerks_of
from tailrace.run.services import Services
from tailrace.sinks.contract import Lane
from tailrace.sinks.pull.settings import PullSink
from tailrace.sinks.pull.sink import Pull

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    import pyarrow as pa

    Post = Callable[[str, dict[str, Any]], Awaitable[Any]]

_TOKEN = "benchmark-0123456789"
_NAME = "orders"
_KEYS = 100_000
_ROWS = 50_000
_PAYLOAD = b'{"id": %d, "text": "' + b"x" * 170 + b'"}'
_CONSUMERS, _BATCH = 1000, 100


def run(quick: bool) -> Report:
    """`pull_per_s`, `pull_p50_ms` and `pull_rss_mb`."""
    count, consumers = (50_000, 100) if quick else (1_000_000, _CONSUMERS)
    report = Report(f"pull: {count:,} messages of 200 bytes, {_KEYS:,} keys")
    with tempfile.TemporaryDirectory(prefix="trpull-") as temporary:
        config = _config(Path(temporary))
        sink = _sink(config)
        began = time.perf_counter()
        for start in range(0, count, _ROWS):
            sink.write(_messages(start, _ROWS))
        sink.flush()
        report.add("into the store", f"{count / (time.perf_counter() - began):,.0f}/s")
        with socket.create_server(("127.0.0.1", 0), backlog=2 * _CONSUMERS) as listener:
            # A process of its own, as with `tailrace run`.
            context = multiprocessing.get_context("fork")
            server = context.Process(target=_serve, args=(config, listener))
            server.start()
            try:
                port = listener.getsockname()[1]
                process = psutil.Process(server.pid)
                most = min(count // 2, 200_000)
                asyncio.run(_drive(report, port, process, most=most, consumers=consumers))
                asyncio.run(_latency(report, port, sink, first=count, waiting=consumers))
                rss = process.memory_info().rss
                report.figure("pull_rss_mb", rss / 1e6, "memory of the server, in the end")
            finally:
                server.terminate()
                server.join()
        sink.close()
    return report


def _config(data: Path) -> Config:
    sink = {
        "type": "pull",
        "tokens": {"all": _TOKEN},
        "visibility_s": 3600,
        "max_ack_pending": 1_000_000,
    }
    pipelines = {_NAME: {"encoding": "json", "sink": sink}}
    return Config.model_validate({"data": str(data), "pipelines": pipelines})


def _sink(config: Config) -> Pull:
    chosen = config.pipelines[_NAME].sink
    assert isinstance(chosen, PullSink)
    sink = Pull(chosen, Lane(pipeline=_NAME, folder=config.data / "sinks" / _NAME))
    sink.open(ORIGIN)
    return sink


def _serve(config: Config, listener: socket.socket) -> None:
    clerks, services = clerks_of(config), Services()
    for name, clerk in clerks.items():
        services.add(name, clerk.run)
    services.start()
    overview = Overview(config, SlotFigures)
    app = Endpoints(config, overview, None, token=_TOKEN, clerks=clerks).application()
    uvicorn.Server(settings(app)).run(sockets=[listener])


def _messages(start: int, count: int, *, keys: int = _KEYS) -> pa.RecordBatch:
    return messages.numbered(
        range(start, start + count),
        destination=lambda _: b"orders",
        payload=lambda number: _PAYLOAD % number,
        keys=keys,
    )


async def _drive(
    report: Report, port: int, server: psutil.Process, *, most: int, consumers: int
) -> None:
    await _blocked(report, port)
    before = sum(server.cpu_times()[:2])
    received = await _throughput(report, port, most=most, consumers=consumers)
    us = (sum(server.cpu_times()[:2]) - before) / received * 1e6
    report.add("CPU of the server", f"{us:,.1f} µs", "per message, received and acknowledged")


async def _blocked(report: Report, port: int) -> None:
    """An answer while 9,000 keys at the head of the store are out."""
    async with _connected(port) as post:
        for _ in range(9):
            await post("receive", {"batch_size": 1000})
        times = []
        ids: list[str] = []
        for _ in range(9):
            began = time.perf_counter()
            found = (await post("receive", {"batch_size": _BATCH}))["messages"]
            times.append(time.perf_counter() - began)
            ids += [each["ack_id"] for each in found]
        ms = statistics.median(times) * 1000
        report.add("receive, 9,000 keys out", f"{ms:,.1f} ms", f"{_BATCH} messages per answer")
        await post("ack", {"ack_ids": ids})


async def _throughput(report: Report, port: int, *, most: int, consumers: int) -> int:
    received = 0

    async def consume() -> None:
        nonlocal received
        async with _connected(port) as post:
            while received < most:
                found = (await post("receive", {"batch_size": _BATCH}))["messages"]
                received += len(found)
                await post("ack", {"ack_ids": [each["ack_id"] for each in found]})

    began = time.perf_counter()
    await asyncio.gather(*(consume() for _ in range(consumers)))
    rate = received / (time.perf_counter() - began)
    remark = f"received and acknowledged, {consumers:,} consumers, {_BATCH} per request"
    report.figure("pull_per_s", rate, remark)
    return received


async def _hold(port: int) -> None:
    """Receive the first message of every key, so that no other may be delivered."""
    async with _connected(port) as post:
        while (await post("receive", {"batch_size": 1000}))["messages"]:
            pass


async def _latency(report: Report, port: int, sink: Pull, *, first: int, waiting: int) -> None:
    """From the write of a message of a new key into the sink to its arrival at one of many
    consumers, while the others of the store wait for their keys."""
    await _hold(port)
    arrived: asyncio.Queue[float] = asyncio.Queue()

    async def consume() -> None:
        async with _connected(port) as post:
            while True:
                answer = await post("receive", {"wait_ms": 300_000})
                if answer["messages"]:
                    arrived.put_nowait(time.perf_counter())
                    ids = [each["ack_id"] for each in answer["messages"]]
                    await post("ack", {"ack_ids": ids})

    def write(number: int) -> None:
        sink.write(_messages(first + number, 1, keys=2**62))
        sink.flush()

    tasks = [asyncio.create_task(consume()) for _ in range(waiting)]
    await asyncio.sleep(3)
    times = []
    for number in range(200):
        began = time.perf_counter()
        thread = threading.Thread(target=write, args=(number,))
        thread.start()
        times.append(await arrived.get() - began)
        thread.join()
        await asyncio.sleep(0.01)
    for task in tasks:
        task.cancel()
    remark = f"from the sink to one of {waiting:,} waiting consumers"
    report.figure("pull_p50_ms", statistics.median(times) * 1000, remark)
    report.add("p99", f"{statistics.quantiles(times, n=100)[-1] * 1000:,.1f} ms")


@asynccontextmanager
async def _connected(port: int) -> AsyncIterator[Post]:
    """A connection for requests, as cheap as can be."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def post(action: str, body: dict[str, Any]) -> Any:
        content = orjson.dumps(body)
        writer.write(
            b"POST /v1/pull/%s/%s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n"
            b"Content-Length: %d\r\n\r\n%s"
            % (_NAME.encode(), action.encode(), _TOKEN.encode(), len(content), content)
        )
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        size = next(
            int(line.partition(b":")[2])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length")
        )
        return orjson.loads(await reader.readexactly(size))

    try:
        yield post
    finally:
        writer.close()
