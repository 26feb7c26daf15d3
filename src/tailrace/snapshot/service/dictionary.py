"""Dictionaries of compressed snapshots: trained on a sample, kept in a bucket for consumers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tailrace.encode.chunks import row_objects
from tailrace.encode.compression import Compression
from tailrace.jetstream.bucket import Bucket, BucketSettings
from tailrace.jetstream.client import connected
from tailrace.snapshot.copy import copy, query
from tailrace.snapshot.rows import read_group

if TYPE_CHECKING:
    from psycopg import Connection

    from tailrace.config import NatsSink
    from tailrace.snapshot.formats import Rows
    from tailrace.snapshot.job import SnapshotJob
    from tailrace.snapshot.table import Stretch

BUCKET = "dictionaries"
_STRETCHES, _ROWS = 20, 4000


def train(
    connection: Connection, edition: SnapshotJob, form: Rows, found: list[Stretch]
) -> Compression:
    """A compression for rows like those of the table, some from all over it."""
    names = edition.columns
    samples: list[bytes] = []
    looked_at = found[:: max(len(found) // _STRETCHES, 1)]
    for stretch in looked_at:
        select = query(stretch, names, edition.conditions)
        select += f" LIMIT {_ROWS // len(looked_at)}"
        for count, image in copy(connection, select, len(names)):
            rows = read_group(edition.table, edition.snapshot, image, count)
            samples += row_objects(rows, form.encoding).to_pylist()
    return Compression.trained(samples)


def store(sink: NatsSink, form: Rows) -> None:
    """Put the dictionary of a snapshot where its chunks say it is."""
    if form.packing is not None and form.packing.number:
        asyncio.run(_store(sink, form.dictionary, form.packing.dictionary))


async def _store(sink: NatsSink, key: str, dictionary: bytes) -> None:
    stream = sink.stream
    settings = BucketSettings(
        name=BUCKET,
        description="What the chunks of snapshots are compressed with.",
        max_age_s=stream.max_age_hours * 3600,
        replicas=stream.replicas,
    )
    async with connected(sink) as client:
        bucket = await Bucket.open(client, settings)
        await bucket.put(key, dictionary)
