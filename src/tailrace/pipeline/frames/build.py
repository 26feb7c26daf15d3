"""Selects the frame that a query asks for, and reads it in a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.backfill.spool import Spool
from tailrace.log.reader import Log
from tailrace.pipeline.frames import blocks, cells, changes
from tailrace.pipeline.frames.blocks import BlockFrame
from tailrace.pipeline.frames.cells import CellFrame
from tailrace.pipeline.frames.changes import ChangeFrame
from tailrace.pipeline.frames.frame import Slice
from tailrace.pipeline.frames.table import TableFrame, table_schema
from tailrace.pipeline.worker import freeze_gc

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from tailrace.pipeline.frames.frame import Frame
    from tailrace.pipeline.source.options import Options
    from tailrace.position import Position

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


def read(
    options: Options,
    schema: StructType,
    after: Position,
    upto: Position,
    numbers: tuple[int, ...] = (),
) -> Iterator[pa.RecordBatch]:
    """The rows of a range, and of the backfill pages with these numbers."""
    frame = build(options, schema)
    log = _logs.get(options.log)
    if log is None:
        log = _logs[options.log] = Log.open(options.log)
    spool = Spool(options.spool) if options.spool else None
    pages = tuple(spool.page(number) for number in numbers) if spool else ()
    yield from frame.batches(Slice(log=log, after=after, upto=upto, pages=pages, spool=spool))
    freeze_gc()
