"""Dictionaries of compressed snapshots: trained on a sample, stored in a bucket for consumers."""

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

    from tailrace.jetstream.settings import JetStreamSettings
    from tailrace.snapshot.formats import Rows
    from tailrace.snapshot.job import SnapshotJob
    from tailrace.snapshot.table import Stretch

BUCKET = "dictionaries"
_STRETCHES, _ROWS = 20, 4000


def train(
    connection: Connection, job: SnapshotJob, form: Rows, stretches: list[Stretch]
) -> Compression:
    """A compression with a dictionary that is trained on rows from the whole table."""
    names = job.columns
    samples: list[bytes] = []
    sampled = stretches[:: max(len(stretches) // _STRETCHES, 1)]
    for stretch in sampled:
        select = query(stretch, names, job.conditions)
        select += f" LIMIT {_ROWS // len(sampled)}"
        for count, image in copy(connection, select, len(names)):
            rows = read_group(job.table, job.snapshot, image, count)
            samples += row_objects(rows, form.encoding).to_pylist()
    return Compression.trained(samples)


def store(sink: JetStreamSettings, form: Rows) -> None:
    """Store the dictionary of a snapshot under the key that its chunks' headers name."""
    if form.compression is not None and form.compression.number:
        asyncio.run(_store(sink, form.dictionary, form.compression.dictionary))


async def _store(sink: JetStreamSettings, key: str, dictionary: bytes) -> None:
    stream = sink.stream
    settings = BucketSettings(
        name=BUCKET,
        description="Compression dictionaries of snapshot chunks.",
        max_age_s=stream.max_age_hours * 3600,
        replicas=stream.replicas,
    )
    async with connected(sink) as client:
        bucket = await Bucket.open(client, settings)
        await bucket.put(key, dictionary)
