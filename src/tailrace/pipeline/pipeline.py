"""A pipeline on one screen: read → where → select → route → encode → deliver.

Without SQL stages the source's own task decodes and encodes, whole columns at a time, and hands on
blocks of messages. With them the rows pass through Spark's expressions and are encoded where they
are delivered.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as sql

from tailrace import checkpoint
from tailrace.backfill.spool import Spool
from tailrace.jetstream.names import token
from tailrace.jetstream.subjects import pattern_of
from tailrace.log.start import parse_start
from tailrace.pipeline import plan
from tailrace.pipeline.deliver import deliver_blocks, deliver_rows
from tailrace.pipeline.opening import Target
from tailrace.pipeline.spec import Spec

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from tailrace.config import Pipeline
    from tailrace.log.reader import Log
    from tailrace.pipeline.plan import Plan
    from tailrace.position import Position


@dataclass(frozen=True, slots=True, kw_only=True)
class Folders:
    """Where a pipeline's files are."""

    log: Path
    checkpoint: Path
    spool: Path
    """Rows of backfills on their way."""


def start(
    spark: SparkSession, name: str, pipeline: Pipeline, *, log: Log, folders: Folders
) -> StreamingQuery:
    """Start the query of a pipeline over the log."""
    folder = folders.checkpoint
    began = checkpoint.beginning(folder, lambda: log.resolve(parse_start(pipeline.start)))
    after = checkpoint.delivered(folder) or began
    waiting = [chunk.table for chunk in Spool(folders.spool).chunks(checkpoint.chunk(folder))]
    stages = plan.make(spark, pipeline, name=name, log=log, after=after, also=waiting)
    spec = spec_of(name, pipeline, log, stages)
    target = Target(
        name=name,
        run=uuid.uuid4().hex,
        sink=pipeline.sink,
        subjects=_subjects(pipeline, spec.database),
        lanes=pipeline.lanes,
        source=_source(log),
    )
    if stages is None:
        blocks = read(spark, pipeline, spec, folders, began)
        receipts = deliver_blocks(in_lanes(blocks, spec), target)
    else:
        rows = stages.apply(read(spark, pipeline, spec, folders, began, frame="cells"))
        receipts = deliver_rows(in_lanes(rows, spec), target, spec, stages.relations())
    return (
        receipts.observe("delivered", *_totals())
        .writeStream.queryName(name)
        .format("noop")
        .option("checkpointLocation", str(folder))
        .start()
    )


def read(
    spark: SparkSession,
    pipeline: Pipeline,
    spec: Spec,
    folders: Folders,
    began: Position,
    *,
    frame: str = "blocks",
) -> DataFrame:
    """The log as a streaming frame."""
    return (
        spark.readStream.format("tailrace")
        .option("log", str(folders.log))
        .option("frame", frame)
        .option("pipeline", spec.dump())
        .option("startingAfter", str(began))
        .option("maxRowsPerTrigger", pipeline.batch_rows)
        .option("maxBytesPerTrigger", pipeline.batch_bytes)
        .option("consumer", spec.name)
        .option("spool", str(folders.spool))
        .load()
    )


def in_lanes(messages: DataFrame, spec: Spec) -> DataFrame:
    """A task a lane. One task reads the log, so a lane's rows stay in order of position; delivery
    makes sure of it, as streams can not be sorted."""
    if spec.lanes == 1:
        return messages
    return messages.repartitionById(spec.lanes, "lane")


def spec_of(name: str, pipeline: Pipeline, log: Log, stages: Plan | None) -> Spec:
    """What the tasks of a pipeline need to know."""
    identity = log.header(log.segments()[-1]).identity
    return Spec(
        name=name,
        tables=pipeline.tables,
        messages=pipeline.messages,
        lanes=pipeline.lanes,
        lane_key=stages.lane_key() if stages is not None and pipeline.lanes > 1 else (),
        keyed=bool(pipeline.key),
        shape=pipeline.shape,
        encoding=pipeline.format,
        sink=pipeline.sink.type,
        subject=pipeline.sink.subject,
        database=identity.database,
        system_identifier=int(identity.system_identifier),
        slot=identity.slot,
        relations=tuple(stages.versions) if stages is not None else (),
    )


def _subjects(pipeline: Pipeline, database: str) -> str:
    """What no other pipeline writes to: all of the stream, or what names the database."""
    template = pipeline.sink.subject
    if pipeline.sink.type != "nats" or pipeline.route or "{database}" not in template:
        return ">"
    return pattern_of(template.replace("{database}", token(database)))


def _source(log: Log) -> str:
    """Where positions come from; after a restore the same ones mean something else."""
    identity = log.header(log.segments()[-1]).identity
    return f"{identity.system_identifier}.{identity.timeline}.{identity.database}"


def _totals() -> list[Column]:
    sums = [sql.sum(name).alias(name) for name in ("messages", "bytes", "duplicates")]
    return [*sums, *(sql.max(name).alias(name) for name in ("p50_us", "p99_us", "committed_us"))]
