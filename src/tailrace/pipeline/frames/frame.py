"""Frames: what rows the source makes of the log.

A frame has one Spark schema for the life of a query and turns a range of the log into Arrow batches
of exactly that schema, in order of position, the same ones every time it is asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from tailrace.backfill.handover import current_rows
from tailrace.decode.decoder import Decoder
from tailrace.decode.merge import merged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql.types import StructType

    from tailrace.backfill.spool import Page, Spool
    from tailrace.decode.group import Group
    from tailrace.log.reader import Log
    from tailrace.position import Position
    from tailrace.schema import Relation
    from tailrace.tables import Tables


class Frame(Protocol):
    """Rows of one schema out of the log."""

    @property
    def schema(self) -> StructType:
        """The Spark schema of the rows."""

    def batches(self, part: Slice) -> Iterator[pa.RecordBatch]:
        """The rows of a slice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """What a task reads: the changes of `(after, upto]`, then the rows of chunks behind them."""

    log: Log
    after: Position
    upto: Position
    chunks: tuple[Page, ...] = ()
    spool: Spool | None = None

    def groups(
        self, *, wanted: Callable[[Relation], bool], messages: Callable[[str], bool]
    ) -> Iterator[list[Group]]:
        """All of it, some entries at a time."""
        decoder = Decoder(wanted=wanted, messages=messages)
        for entry in merged(self.log.read(self.after, self.upto)):
            found = decoder.decode(entry, self.after, self.upto)
            if found:
                yield found
        for chunk in self.chunks:
            assert self.spool is not None
            for group in current_rows(self.spool, chunk, self.log, self.upto):
                if len(group):
                    yield [group]


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema Spark wants to see for a frame, to the letter."""
    return to_arrow_schema(schema, timezone="UTC")


def in_order(
    batches: list[pa.RecordBatch], *, lsn: str = "lsn", ordinal: str = "ordinal"
) -> pa.RecordBatch:
    """One batch out of several, sorted by the columns that hold the position."""
    if len(batches) == 1:
        return batches[0]
    merged = pa.concat_batches(batches)
    order = np.lexsort((merged[ordinal].to_numpy(), merged[lsn].to_numpy()))
    return merged.take(pa.array(order))


def wanted_by(tables: Tables) -> Callable[[Relation], bool]:
    """A test for relations, remembering its answers."""
    known: dict[tuple[str, str], bool] = {}

    def wanted(relation: Relation) -> bool:
        name = (relation.namespace, relation.name)
        if name not in known:
            known[name] = tables.match(*name)
        return known[name]

    return wanted
