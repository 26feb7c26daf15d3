"""A mirror of a million rows in PostgreSQL, against `pg_dump -t item | psql` of the same table.

The mirror is timed from its start, as a process of its own, to the moment when it follows: rows
loaded, key built, state committed. Capture and the pipeline run already, as they do for a user who
starts a mirror. Dump and mirror write to databases of one server, one after the other, alternating.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from statistics import median
from typing import TYPE_CHECKING

import nats
import nats.errors

from benchmarks.deliver import WRITE
from benchmarks.delivery import Pipelines, to_nats
from benchmarks.report import Report
from benchmarks.source import Source, capture, log_folder, source
from tailrace.testing import EmbeddedNats

if TYPE_CHECKING:
    from pathlib import Path

_ROWS = 1_000_000
_REPETITIONS = 3
_LOADED = re.compile(r"item: ([0-9,]+) rows loaded in ([0-9.]+) s")


def run(quick: bool) -> Report:
    """`mirror_s`, `dump_s`, `ratio_mirror`."""
    rows = 100_000 if quick else _ROWS
    report = Report(f"mirror: {rows:,} rows into PostgreSQL")
    with source() as made:
        made.connection.execute(WRITE, (0, rows))
        made.connection.execute("VACUUM ANALYZE item")
        made.connection.execute("CHECKPOINT")
        with log_folder() as folder, EmbeddedNats() as server:
            _compare(made, rows, folder, server, report)
    return report


def _compare(made: Source, rows: int, folder: Path, server: EmbeddedNats, report: Report) -> None:
    made.create_slot("mirror")
    child = capture(made, "mirror", folder)
    child.wait_until_streaming()
    pipeline = to_nats(server.url, encoding="msgpack", snapshots={})
    pipelines = Pipelines(
        folder, source={"dsn": made.dsn, "publication": "tailrace"}, bench=pipeline
    )
    asyncio.run(_prepared(server.url, pipelines))
    # The first snapshot starts Spark's workers, as it does once in the life of a pipeline.
    _mirror(made, server.url, rows)
    dumps, mirrors, loads, asked = [], [], [], []
    for _ in range(_REPETITIONS):
        dumps.append(_dump(made))
        asked.append(asyncio.run(_snapshot(server.url)))
        whole, load = _mirror(made, server.url, rows)
        mirrors.append(whole)
        loads.append(load)
    pipelines.stop()
    child.process.terminate()
    child.finish()
    report.figure("dump_s", median(dumps), "pg_dump | psql")
    report.figure("mirror_s", median(mirrors), "start of the process to following")
    report.figure("ratio_mirror", median(mirrors) / median(dumps), "times pg_dump | psql")
    report.add("of that: to start Python", f"{median(mirrors) - median(loads):.2f} s")
    report.add("request to the last commit", f"{median(loads):.2f} s")
    report.add("the snapshot alone, without a reader", f"{median(asked):.2f} s")


async def _prepared(url: str, pipelines: Pipelines) -> None:
    """A schema document, which `tailrace run` publishes, and a service that answers requests."""
    client = await nats.connect(url)
    bucket = await client.jetstream().create_key_value(bucket="schemas")
    await bucket.put("item", json.dumps(_DOCUMENT).encode())
    while True:
        try:
            await client.request("snapshot.request.nowhere", b"", timeout=30)
            break
        except nats.errors.NoRespondersError:
            pipelines.check()
            await asyncio.sleep(0.2)
    await client.close()


async def _snapshot(url: str) -> float:
    """Seconds from a request to the metadata."""
    client = await nats.connect(url)
    metadata = await client.subscribe("init.meta.item")
    await client.flush()
    began = time.perf_counter()
    await client.request("snapshot.request.item", b"", timeout=30)
    await metadata.next_msg(600)
    taken = time.perf_counter() - began
    await client.close()
    return taken


def _dump(made: Source) -> float:
    target = made.server.create_database("dump")
    binary, socket = made.server.binary, made.dsn
    began = time.perf_counter()
    with subprocess.Popen(
        [str(binary("pg_dump")), "-t", "item", "-d", socket], stdout=subprocess.PIPE
    ) as dump:
        subprocess.run(
            [str(binary("psql")), "-q", "-d", made.server.dsn(target, tcp=False)],
            stdin=dump.stdout,
            stdout=subprocess.DEVNULL,
            check=True,
        )
    assert dump.returncode == 0
    taken = time.perf_counter() - began
    made.server.drop_database(target)
    return taken


def _mirror(made: Source, url: str, rows: int) -> tuple[float, float]:
    """Seconds to the moment when it follows, and those of them that it says itself."""
    target = made.server.create_database("mirror")
    to = f"postgresql://postgres@/{target}?host={made.server.folder}&port={made.server.port}"
    command = [sys.executable, "-m", "tailrace.cli", "mirror", "--from", url, "--table", "item"]
    began = time.perf_counter()
    lines = []
    with subprocess.Popen([*command, "--to", to], stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        for line in child.stderr:
            lines.append(line)
            if line.startswith("item: following"):
                break
        taken = time.perf_counter() - began
        child.terminate()
    found = _LOADED.search("".join(lines))
    assert found is not None, "".join(lines)
    assert int(found[1].replace(",", "")) == rows
    made.server.drop_database(target)
    return taken, float(found[2])


_DOCUMENT = {
    "table": "item",
    "schema": "public.item",
    "timestamp": 0,
    "key": ["id"],
    "columns": [
        {"name": name, "position": at, "data_type": kind, "is_nullable": True,
         "column_default": None}
        for at, (name, kind) in enumerate(
            [
                ("id", "bigint"), ("name", "text"), ("email", "text"), ("quantity", "integer"),
                ("price", "numeric"), ("active", "boolean"), ("detail", "jsonb"),
                ("changed_at", "timestamp with time zone"),
            ],
            1,
        )
    ],
}  # fmt: skip
