"""Frames: how the source turns a range of the log into rows.

A frame has one Spark schema for the life of a query. It turns a range of the log into Arrow batches
of exactly that schema, in order of position, and returns the same rows on every call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema

from tailrace.backfill.handover import current_rows
from tailrace.decode.decoder import Decoder
from tailrace.decode.merge import merged
from tailrace.errors import PoisonedError
from tailrace.position import Lsn, Position

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql.types import StructType

    from tailrace.backfill.spool import Page, Spool
    from tailrace.decode.group import Group
    from tailrace.log.reader import Log
    from tailrace.schema import Relation
    from tailrace.tables import Tables


MAX_ROW_BYTES = 64 << 20
"""Of a row that passes through the JVM, in several copies. It is shared by all pipelines, and a
larger row could exhaust its memory."""
MAX_PARKED_BYTES = 256 << 20
"""Of a row that one task reads and delivers, or parks: Arrow and SQLite take no message of 1 GB."""


class Frame(Protocol):
    """Rows of one schema, read from the log."""

    @property
    def schema(self) -> StructType:
        """The Spark schema of the rows."""

    def batches(self, part: Slice) -> Iterator[pa.RecordBatch]:
        """The rows of a slice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """What a task reads: the changes of `(after, upto]`, then the rows of backfill pages."""

    log: Log
    after: Position
    upto: Position
    pages: tuple[Page, ...] = ()
    spool: Spool | None = None

    def groups(
        self, *, wanted: Callable[[Relation], bool], messages: Callable[[str], bool]
    ) -> Iterator[list[Group]]:
        """The groups of the slice, a few log entries at a time."""
        decoder = Decoder(wanted=wanted, messages=messages)
        # The log may have removed everything up to the end of a range that has nothing to read.
        entries = self.log.read(self.after, self.upto) if self.upto > self.after else ()
        for entry in merged(entries):
            groups = decoder.decode(entry, self.after, self.upto)
            if groups:
                yield groups
        for page in self.pages:
            assert self.spool is not None
            for group in current_rows(self.spool, page, self.log, self.upto):
                if len(group):
                    yield [group]


def check_sizes(groups: list[Group], *, limit: int | None = None) -> list[Group]:
    """The same groups. Raises PoisonedError if a row is too large for its way to the sink.

    A sink refuses a message that is too large for it, and the guard parks it.
    """
    limit = MAX_ROW_BYTES if limit is None else limit
    for group in groups:
        images = [image for image in (group.before, group.after) if image is not None]
        columns = [cells.values for image in images for cells in image if cells is not None]
        columns += [] if group.contents is None else [group.contents]
        if sum(column.nbytes for column in columns) <= limit:
            continue
        sizes = np.zeros(len(group), np.int64)
        for column in columns:
            sizes += pc.binary_length(column).fill_null(0).to_numpy(zero_copy_only=False)
        if sizes.max(initial=0) > limit:
            row = int(sizes.argmax())
            position = Position(Lsn(int(group.lsn[row])), int(group.ordinal[row]))
            table = "a message" if group.relation is None else group.relation.qualified_name
            raise PoisonedError(
                f"the change of {table} at {position} has {sizes[row]:,} bytes, the limit is "
                f"{limit:,}",
                hint="Leave the table out of the pipeline, or publish it without its large column.",
            )
    return groups


def arrow_schema(schema: StructType) -> pa.Schema:
    """The exact Arrow schema that Spark expects for a frame."""
    return to_arrow_schema(schema, timezone="UTC")


def in_order(
    batches: list[pa.RecordBatch], *, lsn: str = "lsn", ordinal: str = "ordinal"
) -> pa.RecordBatch:
    """Several batches as one, sorted by position."""
    if len(batches) == 1:
        return batches[0]
    merged = pa.concat_batches(batches)
    order = np.lexsort((merged[ordinal].to_numpy(), merged[lsn].to_numpy()))
    return merged.take(pa.array(order))


def wanted_by(tables: Tables) -> Callable[[Relation], bool]:
    """A test for relations that caches its results: pattern matching per change is slow."""
    known: dict[tuple[str, str], bool] = {}

    def wanted(relation: Relation) -> bool:
        name = (relation.namespace, relation.name)
        if name not in known:
            known[name] = tables.match(*name)
        return known[name]

    return wanted
