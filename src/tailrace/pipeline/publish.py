"""Stretches of a snapshot as chunks in a stream: one Spark task a stretch, from COPY to publish.

Rows never pass through the JVM: the task that reads them encodes and publishes them, and what comes
back to the driver is a receipt.
"""

from __future__ import annotations

import json
from collections.abc import Iterator  # noqa: TC003 - Spark reads the annotations
from typing import TYPE_CHECKING

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import LongType, StructField, StructType

from tailrace.encode.chunks import Chunk, Chunker
from tailrace.pipeline.failures import meaning
from tailrace.pipeline.frames.frame import arrow_schema
from tailrace.pipeline.worker import in_background, settle, step_back
from tailrace.sinks.nats import Parcel, Parcels
from tailrace.snapshot.copy import copy, lines, query
from tailrace.snapshot.edition import Edition, Published
from tailrace.snapshot.exported import imported
from tailrace.snapshot.rows import read_group

if TYPE_CHECKING:
    from psycopg import Connection
    from pyspark.sql import SparkSession

    from tailrace.snapshot.table import Stretch

_RECEIPT = StructType(
    [StructField(name, LongType()) for name in ("chunks", "rows", "bytes", "beyond")]
)
_ROW = pa.struct(list(arrow_schema(_RECEIPT)))
_HEADERS_BYTES = 512


def publish(
    spark: SparkSession,
    edition: Edition,
    stretches: list[Stretch],
    *,
    number: int,
    stored: frozenset[str],
) -> Published:
    """Publish stretches side by side, with chunk numbers from `number` on.

    Chunks whose subjects are among `stored` are read again, to count them, and not published.
    """
    step = len(stretches)

    @arrow_udf(_RECEIPT)  # type: ignore[call-overload,untyped-decorator]
    def published(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        step_back()
        for batch in batches:
            found = [
                _publish(edition, stretches[at], number + at, step, stored)
                for at in batch.to_pylist()
            ]
            yield pa.array(found, _ROW)
        settle()

    tasks = spark.range(0, step, 1, step)
    receipt = in_background(published.asNondeterministic())("id")
    try:
        rows = tasks.select(receipt.alias("receipt")).collect()
    except (PySparkException, Py4JError, OSError) as error:
        raise meaning(error) from error
    receipts = [row.receipt for row in rows]
    return Published(
        chunks=sum(receipt.chunks for receipt in receipts),
        rows=sum(receipt.rows for receipt in receipts),
        bytes=sum(receipt.bytes for receipt in receipts),
        beyond=max(receipt.beyond for receipt in receipts),
    )


def _publish(
    edition: Edition, stretch: Stretch, number: int, step: int, stored: frozenset[str]
) -> dict[str, int]:
    counts = {"chunks": 0, "rows": 0, "bytes": 0, "beyond": number}
    with (
        Parcels(edition.sink, name=edition.id) as parcels,
        imported(edition.dsn, edition.snapshot) as connection,
    ):
        made = _as_copied if edition.form == "copy" else _as_messages
        for chunk in made(edition, connection, stretch, parcels.most_bytes, (number, step)):
            counts["chunks"] += 1
            counts["rows"] += chunk.rows
            counts["bytes"] += len(chunk.payload)
            counts["beyond"] = chunk.number + 1
            subject = f"{edition.subject}{chunk.number}"
            if subject not in stored:
                parcels.send(_parcel(edition, subject, chunk))
        parcels.flush()
    return counts


def _as_messages(
    edition: Edition,
    connection: Connection,
    stretch: Stretch,
    most_bytes: int,
    numbers: tuple[int, int],
) -> Iterator[Chunk]:
    """Rows in the pipeline's encoding."""
    columns = edition.columns
    chunker = Chunker(
        edition.facts,
        encoding=edition.encoding,
        most_rows=edition.chunk_rows,
        most_bytes=most_bytes,
        number=numbers[0],
        step=numbers[1],
    )
    select = query(stretch, columns, edition.conditions)
    for count, image in copy(connection, select, len(columns)):
        yield from chunker.take(read_group(edition.table, edition.snapshot, image, count))
    yield from chunker.rest()


def _as_copied(
    edition: Edition,
    connection: Connection,
    stretch: Stretch,
    most_bytes: int,
    numbers: tuple[int, int],
) -> Iterator[Chunk]:
    """Rows as they come from COPY, for those who hand them to another one."""
    number, step = numbers
    select = query(stretch, edition.columns, edition.conditions)
    # Beside the headers there is the message's id.
    room = most_bytes - _HEADERS_BYTES - len(json.dumps(edition.columns))
    for rows, text in lines(connection, select, most_rows=edition.chunk_rows, most_bytes=room):
        yield Chunk(number=number, rows=rows, payload=bytes(text))
        number += step


def _copy_headers(edition: Edition) -> list[tuple[str, str]]:
    return [("Tailrace-Columns", json.dumps(edition.columns))]


def _parcel(edition: Edition, subject: str, chunk: Chunk) -> Parcel:
    name, packing, payload = f"{edition.id}-{chunk.number}", edition.compression, chunk.payload
    headers = _copy_headers(edition) if edition.form == "copy" else []
    if packing is not None:
        payload = packing.compress(payload)
        headers.append(("Content-Encoding", "zstd"))
        if packing.number:
            headers.append(("Tailrace-Dictionary", edition.dictionary))
    return Parcel(destination=subject, id=name, payload=payload, headers=tuple(headers))
