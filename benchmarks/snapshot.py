"""A table of millions of rows: through Spark, and into JetStream, against `psql`'s own COPY.

`psql -c "COPY t TO STDOUT"` into nothing is the reference. The read is `spark.read` into Spark's
`noop`; the snapshot is asked for over NATS, as a consumer does, and is over when its metadata is
in the stream. Both run in processes of their own; the time to start them does not count.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from statistics import median
from typing import TYPE_CHECKING, Any

import nats

from benchmarks.deliver import WRITE
from benchmarks.delivery import Pipelines, memory_mb, to_nats
from benchmarks.report import Report
from benchmarks.source import Source, capture, log_folder, source
from tailrace.testing import EmbeddedNats

if TYPE_CHECKING:
    from pathlib import Path

_ROWS = 5_000_000
_REPETITIONS = 3
_READ = """
import sys, time
import tailrace
spark = tailrace.session()
frame = spark.read.format("tailrace").option("dsn", sys.argv[1]).option("table", "item").load()
for _ in range(int(sys.argv[2])):
    began = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    print(time.perf_counter() - began, flush=True)
"""


def run(quick: bool) -> Report:
    """`ratio_read`, `ratio_nats`."""
    report = Report("snapshot: rows/s of a table through Spark, and into JetStream")
    rows = 200_000 if quick else _ROWS
    with source() as made:
        made.connection.execute(WRITE, (0, rows))
        made.connection.execute("VACUUM ANALYZE item")
        made.connection.execute("CHECKPOINT")
        _read(made, rows, report)
        with log_folder() as folder, EmbeddedNats() as server:
            _publish(made, rows, folder, server, report)
    return report


def _reference(made: Source) -> float:
    command = [str(made.server.binary("psql")), made.dsn, "-c", "COPY item TO STDOUT"]
    began = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def _references(made: Source) -> list[float]:
    return [_reference(made) for _ in range(2)]


def _read(made: Source, rows: int, report: Report) -> None:
    before = _references(made)
    child = subprocess.Popen(
        [sys.executable, "-c", _READ, made.dsn, str(_REPETITIONS + 1)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert child.stdout is not None
    child.stdout.readline()
    memory = _Memory(child.pid)
    taken = [float(line) for line in child.stdout]
    child.wait()
    memory.stop()
    reference = median(before + _references(made))
    report.add("psql, COPY TO STDOUT", f"{rows / reference:,.0f} rows/s")
    report.add("spark.read, noop", f"{rows / median(taken):,.0f} rows/s")
    report.figure("ratio_read", reference / median(taken), "÷ psql")
    memory.tell(report)


def _publish(made: Source, rows: int, folder: Path, server: EmbeddedNats, report: Report) -> None:
    made.create_slot("snapshot")
    child = capture(made, "snapshot", folder)
    child.wait_until_streaming()
    pipeline = to_nats(server.url, encoding="json", snapshots={})
    settings = {"dsn": made.dsn, "publication": "tailrace"}
    pipelines = Pipelines(folder, source=settings, bench=pipeline)
    before = _references(made)
    memory = _Memory(pipelines.process.pid)
    taken = [asyncio.run(request(server.url, pipelines)) for _ in range(_REPETITIONS)]
    memory.stop()
    reference = median(before + _references(made))
    pipelines.stop()
    child.process.terminate()
    child.finish()
    report.add("snapshot into JetStream", f"{rows / median(taken):,.0f} rows/s")
    report.figure("ratio_nats", reference / median(taken), "÷ psql")
    memory.tell(report)


async def request(url: str, pipelines: Pipelines) -> float:
    """Seconds from the request to the metadata."""
    client = await nats.connect(url)
    over: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

    async def on_message(message: Any) -> None:
        over.set_result(json.loads(message.data))

    await client.subscribe("init.meta.item", cb=on_message)
    while True:
        began = time.perf_counter()
        try:
            await client.request("snapshot.request.item", b"", timeout=30)
            break
        except nats.errors.NoRespondersError:
            pipelines.check()
            await asyncio.sleep(0.2)
    await asyncio.wait_for(over, 600)
    taken = time.perf_counter() - began
    await client.close()
    return taken


class _Memory:
    """The most that a process and what it started have used."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._over = threading.Event()
        self._most: dict[str, float] = {}
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._over.wait(0.5):
            for name, size in memory_mb(self._pid).items():
                self._most[name] = max(size, self._most.get(name, 0))

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def tell(self, report: Report) -> None:
        for name, size in self._most.items():
            report.add(f"peak memory of {name}", f"{size:,.0f} MB")
