"""How small zstd makes the chunks of a snapshot, with a dictionary and without: the demo's shop."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

from benchmarks.report import Report
from tailrace.encode.compression import Compression
from tailrace.sinks.nats.settings import NatsSink
from tailrace.snapshot.catalog import read_names, read_table, stretches
from tailrace.snapshot.export import export, imported
from tailrace.snapshot.formats import Part, Rows
from tailrace.snapshot.job import SnapshotJob
from tailrace.snapshot.service.dictionary import train
from tailrace.testing import EmbeddedPostgres, SampleShop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from psycopg import Connection

    from tailrace.postgres.names import TableName
    from tailrace.snapshot.table import Stretch

_STEPS = 40_000
_CHUNKS = (10, 100, 10_000)
_MAX_BYTES = 1 << 20


def run(quick: bool) -> Report:
    """For chunks of ten, a hundred and ten thousand rows: `zstd_N`, `dictionary_N`, as ratios."""
    report = Report("compression: chunks of the demo's tables, JSON, bytes ÷ compressed bytes")
    with EmbeddedPostgres(18) as server:
        name = server.create_database("shop")
        with server.connect(name) as connection:
            shop = SampleShop(connection, rng=random.Random(1))
            shop.create()
            for _ in range(_STEPS // 20 if quick else _STEPS):
                shop.step()
            connection.execute("ANALYZE")
        dsn = server.dsn(name)
        with server.connect(name) as keeper:
            for rows in _CHUNKS:
                _measure(report, dsn, keeper, rows)
    return report


def _measure(report: Report, dsn: str, keeper: Connection, rows: int) -> None:
    total: Counter[str] = Counter()
    for table in read_names(keeper):
        sizes = Counter(_sizes(dsn, keeper, table, rows))
        total += sizes
        if sizes["none"]:
            report.add(
                f"{table.name}, {rows:,} rows a chunk",
                f"{sizes['none']:,} bytes",
                f"zstd {sizes['none'] / sizes['zstd']:.1f}, with dictionary "
                f"{sizes['none'] / sizes['dictionary']:.1f}",
            )
    report.figure(f"zstd_{rows}", total["none"] / total["zstd"], "all tables")
    report.figure(
        f"dictionary_{rows}",
        total["none"] / total["dictionary"],
        f"and {total['itself']:,} bytes of dictionaries, once",
    )


def _sizes(dsn: str, keeper: Connection, name: TableName, rows: int) -> dict[str, int]:
    snapshot = export(keeper, name)
    try:
        with imported(dsn, snapshot) as connection:
            table = read_table(connection, name)
            form = Rows(id="bench", table=name, pipeline="bench", encoding="json", chunk_rows=rows)
            job = SnapshotJob(
                dsn=dsn, snapshot=snapshot, table=table, sink=NatsSink(type="nats"), format=form
            )
            found = stretches(connection, table, max_bytes=64 << 20)
            trained, plain = train(connection, job, form, found), Compression()
            sizes = Counter({"itself": len(trained.dictionary)})
            for payload in _chunks(connection, job, found):
                sizes["none"] += len(payload)
                sizes["zstd"] += len(plain.compress(payload))
                sizes["dictionary"] += len(trained.compress(payload))
            return dict(sizes)
    finally:
        keeper.execute("ROLLBACK")


def _chunks(connection: Connection, job: SnapshotJob, found: list[Stretch]) -> Iterator[bytes]:
    for stretch in found:
        part = Part(
            job=job, connection=connection, stretch=stretch, number=0,
            max_bytes=_MAX_BYTES,
        )  # fmt: skip
        for piece in job.format.body(part):
            yield from piece.messages["payload"].to_pylist()
