"""A pipeline on one screen: read → where → select → route → encode → deliver.

Without SQL stages the source's own task decodes and encodes, whole columns at a time, and hands on
blocks of messages. With them the rows pass through Spark's expressions in between.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from pyspark.sql import functions as sql

from tailrace.pipeline.deliver import deliver
from tailrace.pipeline.spec import Spec

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from tailrace.config import Pipeline
    from tailrace.log.format import Identity


def start(
    spark: SparkSession,
    name: str,
    pipeline: Pipeline,
    *,
    log: Path,
    checkpoint: Path,
    identity: Identity,
) -> StreamingQuery:
    """Start the streaming query of a pipeline."""
    spec = spec_of(name, pipeline, identity)
    messages = read(spark, pipeline, spec, log)
    receipts = deliver(
        in_lanes(messages, spec), name=name, run=uuid.uuid4().hex, sink=pipeline.sink
    )
    return (
        receipts.observe(
            "delivered",
            *(sql.sum(name).alias(name) for name in ("messages", "bytes", "duplicates")),
            *(sql.max(name).alias(name) for name in ("p50_us", "p99_us")),
        )
        .writeStream.queryName(name)
        .format("noop")
        .option("checkpointLocation", str(checkpoint))
        .start()
    )


def read(spark: SparkSession, pipeline: Pipeline, spec: Spec, log: Path) -> DataFrame:
    """The log as a streaming frame."""
    return (
        spark.readStream.format("tailrace")
        .option("log", str(log))
        .option("frame", "blocks")
        .option("pipeline", spec.dump())
        .option("startingPosition", pipeline.start)
        .option("maxRowsPerTrigger", pipeline.batch_rows)
        .option("maxBytesPerTrigger", pipeline.batch_bytes)
        .option("consumer", spec.name)
        .load()
    )


def in_lanes(messages: DataFrame, spec: Spec) -> DataFrame:
    """A task a lane, in order of position."""
    if spec.lanes == 1:
        return messages
    return messages.repartition(spec.lanes, "lane").sortWithinPartitions("lsn", "ordinal")


def spec_of(name: str, pipeline: Pipeline, identity: Identity) -> Spec:
    """What the tasks of a pipeline need to know."""
    encoding = pipeline.encoding or ("msgpack" if pipeline.shape == "bridge" else "json")
    return Spec(
        name=name,
        tables=pipeline.tables,
        messages=pipeline.messages,
        lanes=pipeline.lanes,
        shape=pipeline.shape,
        encoding=encoding,
        subject=pipeline.sink.subject,
        database=identity.database,
        system_identifier=int(identity.system_identifier),
        slot=identity.slot,
    )
