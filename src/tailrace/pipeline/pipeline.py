"""A pipeline on one screen: read → where → select → route → encode → deliver.

Without SQL stages the task of the source decodes and encodes, whole columns at a time, and passes
blocks of messages on. With SQL stages the rows pass through Spark's expressions and are encoded in
the task that delivers them. With one lane, batches near the end of the log are open
(`tailrace.open_batch`): without SQL stages the task that delivers reads the log by itself (for some
sinks everywhere), with them the task of the source follows the log and moves its rows on through
Spark.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from pyspark.sql import functions as sql

from tailrace import checkpoint, replicated
from tailrace.backfill.spool import Spool, spool_of
from tailrace.log.term import base_of
from tailrace.parking.parking import Parking
from tailrace.parking.parking import folder_of as parked_folder
from tailrace.pipeline import opening, plan
from tailrace.pipeline.deliver import deliver_blocks, deliver_rows
from tailrace.pipeline.open_source import OpenSource
from tailrace.pipeline.opening import ParkingPlace, Target
from tailrace.pipeline.receipts import SUMS
from tailrace.pipeline.spec import Spec
from tailrace.replicated import Replicated
from tailrace.sinks.registry import SINKS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from tailrace.checkpoint import StartRecord
    from tailrace.config import Config, Pipeline
    from tailrace.log.reader import Log
    from tailrace.pipeline.plan import Plan
    from tailrace.position import Position


_PUSH_BYTES = range(1, (4 << 20) + 1)
"""Sizes of Arrow batches that a row can fill hundreds of times per second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Folders:
    """The folders of a pipeline."""

    log: Path
    checkpoint: Path
    spool: Path
    """Pages of backfills that are not delivered yet."""
    parked: Path
    """Parked messages."""
    sink: Path
    """What the sink knows of its destination."""
    replicated: Replicated | None = None
    """How far followers have all of these; None if tasks do not wait for them."""

    @classmethod
    def of(cls, config: Config, name: str) -> Self:
        """Where the settings have them."""
        data, waits = config.data, config.replication.keeps_state
        return cls(
            log=config.log.path,
            checkpoint=checkpoint.folder_of(data, name),
            spool=spool_of(data, name),
            parked=parked_folder(data, name),
            sink=data / "sinks" / name,
            replicated=Replicated(replicated.folder_of(data), name) if waits else None,
        )


def start(
    spark: SparkSession,
    name: str,
    pipeline: Pipeline,
    *,
    log: Log,
    folders: Folders,
    began: StartRecord,
    dsn: str = "",
    max_open_s: float = 0.0,
) -> StreamingQuery:
    """Start the query of a pipeline over the log. With `max_open_s` its batches may be open; `dsn`
    is of the source, for lookups."""
    folder = folders.checkpoint
    after = checkpoint.delivered(folder) or began.position
    pages = Spool(folders.spool).pages(checkpoint.delivered_page(folder))
    waiting = [page.table for page in pages]
    stages = plan.make(spark, pipeline, name=name, log=log, after=after, dsn=dsn, also=waiting)
    spec = spec_of(name, pipeline, log, stages)
    parking = _parking_of(pipeline, folders, after, history=began.history)
    records = checkpoint.open_folder(folder)
    target = Target(
        name=name,
        run=uuid.uuid4().hex,
        sink=pipeline.sink,
        lanes=pipeline.lanes,
        slot=spec.slot,
        database=spec.database,
        began=began,
        routed=bool(pipeline.route),
        folder=folders.sink,
        records=records,
        log=folders.log,
        retry=pipeline.retry,
        ordered=pipeline.order == "key",
        parking=parking,
    )
    if began.reset and checkpoint.delivered(folder) is None:
        opening.claim(target, after)
    # Rows of several lanes pass through a shuffle, which ends before delivery begins.
    pushed = stages is None or _push_bytes(spark) in _PUSH_BYTES
    open_s = max_open_s if pipeline.lanes == 1 and pushed else 0.0
    if stages is None:
        far = SINKS.find(pipeline.sink.type).backlog_in_one_task
        source = OpenSource(
            log=folders.log,
            spool=folders.spool,
            records=records,
            spec=spec,
            max_rows=pipeline.batch_rows,
            max_s=open_s,
            far=far,
            parked=folders.parked if parking else None,
        )
        blocks = read(spark, pipeline, spec, folders, began, open_s=open_s, open_far=far)
        receipts = deliver_blocks(in_lanes(blocks, spec), target, source)
    else:
        cells = read(spark, pipeline, spec, folders, began, frame="cells", open_s=open_s, dsn=dsn)
        rows = in_lanes(stages.apply(cells), spec)
        receipts = deliver_rows(rows, target, spec, stages.relations(), records)
    return (
        receipts.observe("delivered", *_totals(pipeline.lanes))
        .writeStream.queryName(name)
        .format("noop")
        .option("checkpointLocation", str(folder))
        .start()
    )


def _parking_of(
    pipeline: Pipeline, folders: Folders, delivered: Position, *, history: str
) -> ParkingPlace | None:
    """Where this run of the pipeline parks; None if a refused message stops it."""
    if pipeline.parks == "never":
        return None
    parking = Parking(folders.parked, history=history, together=pipeline.blocks)
    waits = SINKS.find(pipeline.sink.type).stores_position(pipeline.sink)
    return ParkingPlace(
        folder=folders.parked,
        history=history,
        run=parking.start_query(delivered),
        blocks=pipeline.blocks,
        replicated=folders.replicated if waits else None,
    )


def read(
    spark: SparkSession,
    pipeline: Pipeline,
    spec: Spec,
    folders: Folders,
    began: StartRecord,
    *,
    frame: str = "blocks",
    open_s: float = 0.0,
    open_far: bool = False,
    dsn: str = "",
) -> DataFrame:
    """The log as a streaming frame."""
    return (
        spark.readStream.format("tailrace")
        .option("log", str(folders.log))
        .option("frame", frame)
        .option("pipeline", spec.dump())
        .option("startingAfter", str(began.position))
        .option("history", began.history)
        .option("maxRowsPerTrigger", pipeline.batch_rows)
        .option("maxBytesPerTrigger", pipeline.batch_bytes)
        .option("consumer", spec.name)
        .option("spool", str(folders.spool))
        .option("parked", str(folders.parked) if pipeline.parks != "never" else "")
        .option("parkedTogether", pipeline.blocks)
        .option("openBatches", str(checkpoint.open_folder(folders.checkpoint)))
        .option("maxOpenSeconds", open_s)
        .option("openFar", open_far)
        # Spark redacts options that are named so.
        .option("sourceUrl", dsn if spec.lookups else "")
        .option("pushBytes", _push_bytes(spark))
        .load()
    )


def _push_bytes(spark: SparkSession) -> int:
    """The size of an Arrow batch at which Spark passes it on to a Python function."""
    return int(spark._jsparkSession.sessionState().conf().arrowMaxBytesPerBatch())


def in_lanes(messages: DataFrame, spec: Spec) -> DataFrame:
    """One task per lane. One task reads the log, so the rows of a lane stay in order of position.
    Streams cannot be sorted; delivery checks the order."""
    if spec.lanes == 1:
        return messages
    return messages.repartitionById(spec.lanes, "lane")


def spec_of(name: str, pipeline: Pipeline, log: Log, stages: Plan | None) -> Spec:
    """The settings that the tasks of a pipeline need."""
    header = log.header(log.segments()[-1])
    identity = header.identity
    return Spec(
        name=name,
        tables=pipeline.tables,
        messages=pipeline.messages,
        lanes=pipeline.lanes,
        lane_key=stages.lane_key() if stages is not None and pipeline.lanes > 1 else (),
        grouped=bool(pipeline.group),
        keyed=bool(pipeline.key),
        shape=pipeline.shape,
        encoding=pipeline.format,
        sink=pipeline.sink.type,
        destination=pipeline.sink.template,
        database=identity.database,
        system_identifier=int(identity.system_identifier),
        slot=base_of(identity.slot, header.epoch),
        relations=tuple(stages.versions) if stages is not None else (),
        linger_s=pipeline.sink.linger_s,
        lookups=stages.lookups() if stages is not None else "",
    )


def _totals(lanes: int) -> list[Column]:
    sums = [sql.sum(name).alias(name) for name in SUMS]
    # Sinks with refusals have one lane.
    largest = ("p50_us", "p99_us", "committed_us", "refusals")
    return [*sums, *(sql.max(name).alias(name) for name in largest), *_latencies(lanes)]


def _latencies(lanes: int) -> Iterator[Column]:
    """Each lane has its own, as text."""
    for lane in range(lanes):
        found = sql.col("latencies")
        own = found if lanes == 1 else sql.when(sql.col("lane") == lane, found)
        yield sql.max(own).alias(f"latencies_{lane}")
