"""The messages that a pipeline makes of recent changes: what `tailrace pipeline try` shows.

They pass through the expressions, the shape and the encoding, as in the running pipeline. Spark
runs only if the pipeline has SQL stages. Nothing is sent but one message on request.
"""

from __future__ import annotations

from collections import deque
from contextlib import closing
from typing import TYPE_CHECKING

import pyarrow as pa

from tailrace.errors import ConfigError
from tailrace.log.newest import previous
from tailrace.message import MESSAGES
from tailrace.pipeline import plan, session
from tailrace.pipeline.deliver import encode_rows
from tailrace.pipeline.expressions import expression
from tailrace.pipeline.frames.blocks import BlockFrame, encoder_of, unpack
from tailrace.pipeline.frames.cells import CellFrame
from tailrace.pipeline.frames.frame import Slice
from tailrace.pipeline.pipeline import spec_of
from tailrace.position import ORIGIN
from tailrace.sinks.contract import Lane
from tailrace.sinks.registry import SINKS
from tailrace.sinks.retry import Retry
from tailrace.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tailrace.config import Pipeline
    from tailrace.config import Spark as SparkSettings
    from tailrace.log.reader import Log
    from tailrace.position import Position
    from tailrace.sinks.outcome import Outcome

LOOK_BACK = 10_000
"""How many of the last changes of its tables are tried."""


def preview(
    pipeline: Pipeline,
    name: str,
    log: Log,
    spark: SparkSettings,
    *,
    dsn: str,
    table: str,
    limit: int,
) -> list[pa.RecordBatch]:
    """The last messages of a pipeline, oldest first; with a `table` those of this table."""
    one_lane = pipeline.model_copy(update={"lanes": 1, **_only(pipeline, table)})
    end = log.end().position
    if expression.parse(pipeline, name=name):
        messages = _through_spark(one_lane, name, log, spark, dsn)
    else:
        frame = BlockFrame(spec_of(name, one_lane, log, None))
        messages = _recent(log, end, lambda part: _unpacked(frame.batches(part)))
    return _last(messages, limit)


def message_of(
    pipeline: Pipeline, name: str, log: Log, position: Position
) -> pa.RecordBatch | None:
    """The message that a pipeline makes of one change; None if that takes Spark."""
    if expression.parse(pipeline, name=name):
        return None
    frame = BlockFrame(spec_of(name, pipeline.model_copy(update={"lanes": 1}), log, None))
    part = Slice(log=log, after=previous(position), upto=position)
    nothing = pa.RecordBatch.from_pylist([], schema=MESSAGES)
    return next(_unpacked(frame.batches(part)), nothing)


def check_send(pipeline: Pipeline) -> None:
    """Raise ConfigError if a message cannot be sent apart from the pipeline."""
    kind = SINKS.find(pipeline.sink.type)
    if not kind.sends_alone(pipeline.sink):
        raise ConfigError(
            f"the sink {kind.name} keeps what it has sent, so a single message cannot be sent",
            hint="Leave --send out. `tailrace check` tests the destination.",
        )


def send(pipeline: Pipeline, name: str, message: pa.RecordBatch) -> Outcome | None:
    """Send one message, with its id, as the pipeline would. Returns why it was not accepted."""
    lane = Lane(pipeline=name, retry=Retry(attempts=1), routed=bool(pipeline.route))
    with closing(SINKS.find(pipeline.sink.type).open(pipeline.sink, lane)) as sink:
        sink.open(ORIGIN)
        if refused := sink.inspect(message):
            return refused[0]
        sink.write(message)
        failures = sink.flush().failures
    return failures[0].outcome if failures else None


def _only(pipeline: Pipeline, table: str) -> dict[str, object]:
    if not table:
        return {}
    namespace, _, name = table.rpartition(".")
    full = (namespace or "public", name)
    if not Tables(pipeline.tables).match(*full):
        raise ConfigError(
            f"the pipeline does not read the table {'.'.join(full)}",
            hint=f"Its `tables` are: {', '.join(pipeline.tables)}.",
        )
    return {"tables": (".".join(full),), "messages": ()}


def _through_spark(
    pipeline: Pipeline, name: str, log: Log, spark: SparkSettings, dsn: str
) -> list[pa.RecordBatch]:
    running = session.build(spark, name="tailrace try")
    stages = plan.make(running, pipeline, name=name, log=log, after=log.earliest(), dsn=dsn)
    assert stages is not None
    spec = spec_of(name, pipeline, log, stages)
    cells = _recent(log, log.end().position, CellFrame(spec, dsn).batches)
    if not cells:
        return []
    frame = running.createDataFrame(pa.Table.from_batches(cells), CellFrame.schema)
    encoder, relations = encoder_of(spec), stages.relations()
    found = stages.apply(frame).toArrow().combine_chunks().to_struct_array()
    chunks = found.chunks if isinstance(found, pa.ChunkedArray) else [found]
    return [each for rows in chunks for each in encode_rows(rows, encoder, spec, relations)]


def _unpacked(blocks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in blocks:
        yield from map(unpack, batch["messages"])


def _recent(
    log: Log, end: Position, read: Callable[[Slice], Iterator[pa.RecordBatch]]
) -> list[pa.RecordBatch]:
    """Rows of the last changes: of the last segment, and of earlier ones while these are few."""
    segments, count = log.segments(), 1
    while True:
        last = count >= len(segments)
        after = log.earliest() if last else log.header(segments[-count]).base
        rows = _tail(read(Slice(log=log, after=after, upto=end))) if end > after else []
        if last or sum(batch.num_rows for batch in rows) >= LOOK_BACK:
            return rows
        count *= 2


def _tail(batches: Iterator[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The last batches that have enough rows together."""
    kept: deque[pa.RecordBatch] = deque()
    rows = 0
    for batch in batches:
        if batch.num_rows:
            kept.append(batch)
            rows += batch.num_rows
        while kept and rows - kept[0].num_rows >= LOOK_BACK:
            rows -= kept.popleft().num_rows
    return list(kept)


def _last(batches: list[pa.RecordBatch], limit: int) -> list[pa.RecordBatch]:
    kept: deque[pa.RecordBatch] = deque()
    for batch in reversed(batches):
        if limit <= 0:
            break
        part = batch.slice(max(batch.num_rows - limit, 0))
        kept.appendleft(part)
        limit -= part.num_rows
    return list(kept)
