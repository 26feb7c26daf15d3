"""Selects the frame that a query asks for, and reads it in a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.backfill.spool import Spool
from tailrace.log.reader import Log
from tailrace.pipeline.frames import blocks, cells, changes
from tailrace.pipeline.frames.blocks import BlockFrame, open_block
from tailrace.pipeline.frames.cells import CellFrame
from tailrace.pipeline.frames.changes import ChangeFrame
from tailrace.pipeline.frames.frame import Slice
from tailrace.pipeline.frames.table import TableFrame, table_schema
from tailrace.pipeline.open_source import OpenSource
from tailrace.pipeline.source.planner import PlannedVersions
from tailrace.pipeline.spec import Spec
from tailrace.pipeline.worker import freeze_gc

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from tailrace.open_batch import OpenBatch
    from tailrace.pipeline.frames.frame import Frame
    from tailrace.pipeline.source.options import Options
    from tailrace.position import Position

__all__ = ["build", "follow", "open_log", "read", "released", "schema_of"]

_logs: dict[Path, Log] = {}
"""Logs that this worker has open: an open log continues where the last range ended."""


def schema_of(options: Options) -> StructType:
    """The schema of the frame these options describe."""
    match options.frame:
        case "blocks":
            return blocks.SCHEMA
        case "cells":
            return cells.SCHEMA
        case "table":
            return table_schema(options)
        case _:
            return changes.SCHEMA


def build(options: Options, schema: StructType) -> Frame:
    """The frame these options describe, in a query of this schema."""
    match options.frame:
        case "blocks":
            return BlockFrame.of(options)
        case "cells":
            return CellFrame.of(options)
        case "table":
            return TableFrame(options, schema)
        case _:
            return ChangeFrame(options)


def open_log(folder: Path) -> Log:
    """The log, as this worker has it open."""
    if folder not in _logs:
        _logs[folder] = Log.open(folder)
    return _logs[folder]


def read(
    options: Options,
    schema: StructType,
    after: Position,
    upto: Position,
    numbers: tuple[int, ...] = (),
) -> Iterator[pa.RecordBatch]:
    """The rows of a range, and of the backfill pages with these numbers."""
    frame, log = build(options, schema), open_log(options.log)
    spool = Spool(options.spool) if options.spool else None
    pages = tuple(spool.page(number) for number in numbers) if spool else ()
    yield from frame.batches(Slice(log=log, after=after, upto=upto, pages=pages, spool=spool))
    freeze_gc()


def released(options: Options, after: str, number: int) -> pa.RecordBatch:
    """The row of a batch that delivers parked messages again: the task reads them by itself."""
    if options.frame == "blocks":
        return blocks.released_block(after, number)
    return cells.released_row(after, number)


def follow(options: Options, batch: OpenBatch, page: int) -> Iterator[pa.RecordBatch]:
    """The rows of an open batch: of blocks one, and the task that delivers follows the log."""
    if options.frame == "blocks":
        yield open_block(batch, page)
        return
    assert options.spool is not None
    assert options.open_batches is not None
    spec = Spec.load(options.pipeline)
    source = OpenSource(
        log=options.log,
        spool=options.spool,
        records=options.open_batches,
        spec=spec,
        max_rows=options.max_rows,
        max_s=options.max_open_s,
        parked=options.parked,
    )
    log = open_log(options.log)
    following = source.follow(log, batch, page=page, versions=PlannedVersions.of(spec))
    yield from CellFrame.of(options).follow(following, batch, push_bytes=options.push_bytes)
    freeze_gc()
