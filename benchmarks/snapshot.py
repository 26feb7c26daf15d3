"""A table of millions of rows: through Spark, and into JetStream, against `psql`'s own COPY.

`psql -c "COPY t TO STDOUT"` into nothing is the reference. The read is `spark.read` into Spark's
`noop`: with what happened to each row, and again the table's own columns alone. The snapshot
is asked for over NATS, as a consumer does, and is over when its metadata is in the stream. Both run
in processes of their own; the time to start them does not count.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from statistics import median
from typing import TYPE_CHECKING, Any, Self

import nats

from benchmarks.deliver import WRITE
from benchmarks.delivery import Pipelines, memory_mb, to_nats
from benchmarks.report import Report
from benchmarks.source import Source, capture, log_folder, source
from tailrace.testing import EmbeddedNats

if TYPE_CHECKING:
    from pathlib import Path

_ROWS = 5_000_000
_WARM, _REPETITIONS = 2, 5
_READ = """
import sys, time
import tailrace
spark = tailrace.session()
frame = (
    spark.read.format("tailrace")
    .option("dsn", sys.argv[1])
    .option("table", "item")
    .option("facts", sys.argv[2])
    .load()
)
for _ in sys.stdin:
    began = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    print(time.perf_counter() - began, flush=True)
"""


def run(quick: bool) -> Report:
    """`ratio_read`, `ratio_read_plain`, `ratio_nats`."""
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


def _read(made: Source, rows: int, report: Report) -> None:
    for name, facts in (("ratio_read", "true"), ("ratio_read_plain", "false")):
        child = subprocess.Popen(
            [sys.executable, "-c", _READ, made.dsn, facts],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        with child, _Memory(child.pid) as memory:
            for _ in range(_WARM):
                _once(child)
            # Taken in turns, as the machine's speed changes from one minute to the next.
            taken = [(_reference(made), _once(child)) for _ in range(_REPETITIONS)]
        reference, read = (median(column) for column in zip(*taken, strict=True))
        report.add("psql, COPY TO STDOUT", f"{rows / reference:,.0f} rows/s")
        report.add("spark.read, noop", f"{rows / read:,.0f} rows/s", f"facts {facts}")
        report.figure(name, median(psql / spark for psql, spark in taken), "÷ psql")
        memory.tell(report)


def _once(child: subprocess.Popen[str]) -> float:
    """Have it read the table; the seconds it took."""
    assert child.stdin is not None
    assert child.stdout is not None
    print(file=child.stdin, flush=True)
    return float(child.stdout.readline())


def _publish(made: Source, rows: int, folder: Path, server: EmbeddedNats, report: Report) -> None:
    made.create_slot("snapshot")
    child = capture(made, "snapshot", folder)
    child.wait_until_streaming()
    pipeline = to_nats(server.url, encoding="json", snapshots={})
    settings = {"dsn": made.dsn, "publication": "tailrace"}
    pipelines = Pipelines(folder, source=settings, bench=pipeline)
    with _Memory(pipelines.process.pid) as memory:
        taken = [
            (_reference(made), asyncio.run(request(server.url, pipelines)))
            for _ in range(_REPETITIONS)
        ]
    pipelines.stop()
    child.process.terminate()
    child.finish()
    reference, snapshot = (median(column) for column in zip(*taken, strict=True))
    report.add("psql, COPY TO STDOUT", f"{rows / reference:,.0f} rows/s")
    report.add("snapshot into JetStream", f"{rows / snapshot:,.0f} rows/s")
    report.figure("ratio_nats", median(psql / ours for psql, ours in taken), "÷ psql")
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

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._over.wait(0.5):
            for name, size in memory_mb(self._pid).items():
                self._most[name] = max(size, self._most.get(name, 0))

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def tell(self, report: Report) -> None:
        for name, size in self._most.items():
            report.add(f"peak memory of {name}", f"{size:,.0f} MB")
