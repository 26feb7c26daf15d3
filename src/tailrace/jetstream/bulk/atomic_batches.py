"""Source transactions as JetStream's atomic batches: which rows belong together.

A transaction may span batches, so the last one of a batch is held back until the next rows, or
`flush`, show that it is complete. A transaction larger than a server allows (1,000 messages) cannot
be atomic: its rows are published one by one, in order, and a warning is logged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import structlog

from tailrace.jetstream.bulk.frames import byte_bounds
from tailrace.position import READS, Lsn

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

MAX_ROWS = 1000
_MAX_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Rows to publish: whole transactions, each atomically, or rows one by one."""

    rows: pa.RecordBatch
    atomic: bool


def starts(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """The first row of each transaction."""
    lsns = batch.column("lsn").to_numpy()
    return np.flatnonzero(np.r_[True, lsns[1:] != lsns[:-1]]) if len(lsns) else np.arange(0)


class Transactions:
    """Collects whole transactions from batches that may split them."""

    def __init__(self) -> None:
        self._incomplete: pa.RecordBatch | None = None
        self._oversized: int | None = None
        """The LSN of a transaction whose rows are published one by one."""

    def take(self, batch: pa.RecordBatch) -> Iterator[Run]:
        """The runs that can be published now."""
        changes = int(np.count_nonzero(batch["ordinal"].to_numpy() < READS))
        yield from self._changes(batch.slice(0, changes))
        if changes < batch.num_rows:
            # Rows of a backfill come after all changes, and belong to no transaction.
            yield from self.flush()
            yield Run(rows=batch.slice(changes), atomic=False)

    def _changes(self, batch: pa.RecordBatch) -> Iterator[Run]:
        if not batch.num_rows:
            return
        rows = pa.concat_batches([self._incomplete, batch]) if self._incomplete else batch
        self._incomplete = None
        last = int(starts(rows)[-1])
        yield from self._runs(rows.slice(0, last))
        tail = rows.slice(last)
        if self._too_large(tail):
            yield self._one_by_one(tail)
        else:
            self._incomplete = tail

    def flush(self) -> Iterator[Run]:
        """The transaction that was held back: no more rows of it follow."""
        rows, self._incomplete = self._incomplete, None
        if rows is not None:
            yield Run(rows=rows, atomic=True)

    def _runs(self, rows: pa.RecordBatch) -> Iterator[Run]:
        begins = starts(rows)
        ends = np.r_[begins[1:], rows.num_rows]
        bounds = byte_bounds(rows.column("payload"))
        lsns = rows.column("lsn").to_numpy()[begins]
        large = (ends - begins > MAX_ROWS) | (bounds[ends] - bounds[begins] > _MAX_BYTES)
        if self._oversized is not None:
            large |= lsns == self._oversized
        published = 0
        for at in np.flatnonzero(large):
            if published < begins[at]:
                yield Run(rows=rows.slice(published, begins[at] - published), atomic=True)
            yield self._one_by_one(rows.slice(begins[at], ends[at] - begins[at]))
            published = int(ends[at])
        if published < rows.num_rows:
            yield Run(rows=rows.slice(published), atomic=True)

    def _too_large(self, rows: pa.RecordBatch) -> bool:
        bounds = byte_bounds(rows.column("payload"))
        if rows.num_rows > MAX_ROWS or bounds[-1] - bounds[0] > _MAX_BYTES:
            return True
        return bool(rows.column("lsn")[0].as_py() == self._oversized)

    def _one_by_one(self, rows: pa.RecordBatch) -> Run:
        lsn = rows.column("lsn")[0].as_py()
        if lsn != self._oversized:
            self._oversized = lsn
            structlog.get_logger().warning(
                "nats.transaction_not_atomic",
                lsn=str(Lsn(lsn)),
                max_rows=MAX_ROWS,
                rows=rows.num_rows,
            )
        return Run(rows=rows, atomic=False)
