"""Stretches of a snapshot as chunks in a stream: one Spark task a stretch, from COPY to publish.

Rows never pass through the JVM: the task that reads them encodes and publishes them, and what comes
back to the driver is a receipt.
"""

from __future__ import annotations

from collections.abc import Iterator  # noqa: TC003 - Spark reads the annotations
from typing import TYPE_CHECKING

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import LongType, StructField, StructType

from tailrace.encode.chunks import Chunker
from tailrace.pipeline.failures import meaning
from tailrace.pipeline.frames.frame import arrow_schema
from tailrace.pipeline.worker import in_background, settle, step_back
from tailrace.sinks.nats import Parcel, Parcels
from tailrace.snapshot.copy import copy, query
from tailrace.snapshot.edition import Edition, Published
from tailrace.snapshot.exported import imported
from tailrace.snapshot.rows import read_group

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tailrace.encode.chunks import Chunk
    from tailrace.snapshot.table import Stretch

_RECEIPT = StructType(
    [StructField(name, LongType()) for name in ("chunks", "rows", "bytes", "beyond")]
)
_ROW = pa.struct(list(arrow_schema(_RECEIPT)))


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
    columns = [column.name for column in edition.table.relation.columns]
    counts = {"chunks": 0, "rows": 0, "bytes": 0, "beyond": number}
    with (
        Parcels(edition.sink, name=edition.id) as parcels,
        imported(edition.dsn, edition.snapshot) as connection,
    ):
        chunker = Chunker(
            edition.facts,
            encoding=edition.encoding,
            most_rows=edition.chunk_rows,
            most_bytes=parcels.most_bytes,
            number=number,
            step=step,
        )

        def send(chunks: Iterator[Chunk]) -> None:
            for chunk in chunks:
                counts["chunks"] += 1
                counts["rows"] += chunk.rows
                counts["bytes"] += len(chunk.payload)
                counts["beyond"] = chunk.number + 1
                subject = f"{edition.subject}{chunk.number}"
                if subject not in stored:
                    parcels.send(_parcel(edition, subject, chunk))

        for count, image in copy(
            connection, query(stretch, columns, edition.conditions), len(columns)
        ):
            send(chunker.take(read_group(edition.table, edition.snapshot, image, count)))
        send(chunker.rest())
        parcels.flush()
    return counts


def _parcel(edition: Edition, subject: str, chunk: Chunk) -> Parcel:
    name, packing = f"{edition.id}-{chunk.number}", edition.compression
    if packing is None:
        return Parcel(destination=subject, id=name, payload=chunk.payload)
    headers = [("Content-Encoding", "zstd")]
    if packing.number:
        headers.append(("Tailrace-Dictionary", edition.dictionary))
    return Parcel(
        destination=subject,
        id=name,
        payload=packing.compress(chunk.payload),
        headers=tuple(headers),
    )
