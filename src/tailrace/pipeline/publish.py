"""Publishes stretches of a snapshot to a stream: one Spark task per stretch, from COPY to publish.

Rows never pass through the JVM: the task that reads them also encodes and publishes them, and
returns a receipt to the driver. The job's format defines the messages.
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


def publish(spark: SparkSession, job: SnapshotJob, wave: Wave) -> Published:
    """Publish the stretches of a wave in parallel.

    Messages that are already in the stream are encoded again, to count them, but not published.
    """

    @arrow_udf(_RECEIPT)  # type: ignore[call-overload,untyped-decorator]
    def published(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        lower_priority()
        for batch in batches:
            receipts = [_publish(job, wave, index) for index in batch.to_pylist()]
            yield pa.array(receipts, _ROW)
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


def _publish(job: SnapshotJob, wave: Wave, index: int) -> dict[str, int]:
    form, number = job.format, wave.number + index
    counts = {"chunks": 0, "rows": 0, "bytes": 0, "beyond": number + 1}
    with (
        SnapshotPublisher(
            job.sink, name=form.id, outstanding=form.outstanding(job.sink)
        ) as publisher,
        imported(job.dsn, job.snapshot) as connection,
    ):
        in_page_order(connection)
        stored = form.stored(publisher, number, wave.after) if _is_retry(wave) else None
        part = Part(
            job=job,
            connection=connection,
            stretch=wave.stretches[index],
            number=number,
            step=len(wave.stretches),
            max_bytes=publisher.max_bytes,
        )
        for piece in form.body(part):
            counts["chunks"] += piece.messages.num_rows
            counts["rows"] += piece.rows
            counts["bytes"] += piece.bytes
            counts["beyond"] = piece.beyond
            publisher.publish(piece.messages if stored is None else stored.missing(piece.messages))
        publisher.flush()
        return counts | {"last": publisher.last()}


def _is_retry(wave: Wave) -> bool:
    """Whether an earlier run, or an earlier attempt of this Spark task, may have published."""
    task = TaskContext.get()
    return wave.again or (task is not None and task.attemptNumber() > 0)
