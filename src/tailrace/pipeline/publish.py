"""Stretches of a snapshot as messages in a stream: one Spark task a stretch, from COPY to publish.

Rows never pass through the JVM: the task that reads them encodes and publishes them, and what comes
back to the driver is a receipt. What the messages are is for the edition's format to say.
"""

from __future__ import annotations

from collections.abc import Iterator  # noqa: TC003 - Spark reads the annotations
from typing import TYPE_CHECKING

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import LongType, StructField, StructType

from tailrace.jetstream.bulk.snapshot_messages import SnapshotPublisher
from tailrace.pipeline.failures import translate_error
from tailrace.pipeline.frames.frame import arrow_schema
from tailrace.pipeline.worker import freeze_gc, in_background, lower_priority
from tailrace.snapshot.export import imported, in_page_order
from tailrace.snapshot.formats import Part
from tailrace.snapshot.job import Published, SnapshotJob, Wave

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_RECEIPT = StructType(
    [StructField(name, LongType()) for name in ("chunks", "rows", "bytes", "beyond", "last")]
)
_ROW = pa.struct(list(arrow_schema(_RECEIPT)))


def publish(spark: SparkSession, edition: SnapshotJob, wave: Wave) -> Published:
    """Publish the stretches of a wave side by side.

    Messages that are in the stream already are made again, to count them, and not published.
    """

    @arrow_udf(_RECEIPT)  # type: ignore[call-overload,untyped-decorator]
    def published(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        lower_priority()
        for batch in batches:
            found = [_publish(edition, wave, at) for at in batch.to_pylist()]
            yield pa.array(found, _ROW)
        freeze_gc()

    count = len(wave.stretches)
    receipt = in_background(published.asNondeterministic())("id")
    try:
        rows = spark.range(0, count, 1, count).select(receipt.alias("receipt")).collect()
    except (PySparkException, Py4JError, OSError) as error:
        raise translate_error(error) from error
    receipts = [row.receipt for row in rows]
    return Published(
        chunks=sum(receipt.chunks for receipt in receipts),
        rows=sum(receipt.rows for receipt in receipts),
        bytes=sum(receipt.bytes for receipt in receipts),
        beyond=max(receipt.beyond for receipt in receipts),
        last=max(receipt.last for receipt in receipts),
    )


def _publish(edition: SnapshotJob, wave: Wave, at: int) -> dict[str, int]:
    form, number = edition.format, wave.number + at
    counts = {"chunks": 0, "rows": 0, "bytes": 0, "beyond": number + 1}
    with (
        SnapshotPublisher(
            edition.sink, name=form.id, outstanding=form.outstanding(edition.sink)
        ) as parcels,
        imported(edition.dsn, edition.snapshot) as connection,
    ):
        in_page_order(connection)
        stored = form.stored(parcels, number, wave.after) if _again(wave) else None
        part = Part(
            edition=edition,
            connection=connection,
            stretch=wave.stretches[at],
            number=number,
            step=len(wave.stretches),
            most_bytes=parcels.max_bytes,
        )
        for piece in form.body(part):
            counts["chunks"] += piece.messages.num_rows
            counts["rows"] += piece.rows
            counts["bytes"] += piece.bytes
            counts["beyond"] = piece.beyond
            parcels.publish(piece.messages if stored is None else stored.missing(piece.messages))
        parcels.flush()
        return counts | {"last": parcels.last()}


def _again(wave: Wave) -> bool:
    """Whether a task before this one may have published some of it; Spark repeats tasks, too."""
    task = TaskContext.get()
    return wave.again or (task is not None and task.attemptNumber() > 0)
