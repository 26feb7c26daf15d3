"""Source transactions as JetStream's atomic batches: which rows belong together.

A transaction may end in a later batch than it began, so the last one is held back until the next
rows, or `rest`, show that it is whole. One that is larger than a server takes (1,000 messages)
cannot be atomic: it goes out row by row, in order, and is said.
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

MOST_ROWS = 1000
_MOST_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Rows to publish: whole transactions, each atomically, or rows one by one."""

    rows: pa.RecordBatch
    atomic: bool


def starts(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Where each transaction begins."""
    lsns = batch.column("lsn").to_numpy()
    return np.flatnonzero(np.r_[True, lsns[1:] != lsns[:-1]]) if len(lsns) else np.arange(0)


class Transactions:
    """Gathers whole transactions out of batches that may cut them."""

    def __init__(self) -> None:
        self._held: pa.RecordBatch | None = None
        self._large: int | None = None
        """The LSN of a transaction of which some rows have gone out one by one."""

    def take(self, batch: pa.RecordBatch) -> Iterator[Run]:
        """What can be published now."""
        changes = int(np.count_nonzero(batch["ordinal"].to_numpy() < READS))
        yield from self._changes(batch.slice(0, changes))
        if changes < batch.num_rows:
            # Rows of a backfill stand behind all changes, and belong to no transaction.
            yield from self.rest()
            yield Run(rows=batch.slice(changes), atomic=False)

    def _changes(self, batch: pa.RecordBatch) -> Iterator[Run]:
        if not batch.num_rows:
            return
        rows = pa.concat_batches([self._held, batch]) if self._held else batch
        self._held = None
        last = int(starts(rows)[-1])
        yield from self._runs(rows.slice(0, last))
        tail = rows.slice(last)
        if self._too_large(tail):
            yield self._one_by_one(tail)
        else:
            self._held = tail

    def rest(self) -> Iterator[Run]:
        """What was held back, now that nothing of it can follow."""
        held, self._held = self._held, None
        if held is not None:
            yield Run(rows=held, atomic=True)

    def _runs(self, rows: pa.RecordBatch) -> Iterator[Run]:
        begins = starts(rows)
        ends = np.r_[begins[1:], rows.num_rows]
        bounds = byte_bounds(rows.column("payload"))
        lsns = rows.column("lsn").to_numpy()[begins]
        large = (ends - begins > MOST_ROWS) | (bounds[ends] - bounds[begins] > _MOST_BYTES)
        if self._large is not None:
            large |= lsns == self._large
        done = 0
        for at in np.flatnonzero(large):
            if done < begins[at]:
                yield Run(rows=rows.slice(done, begins[at] - done), atomic=True)
            yield self._one_by_one(rows.slice(begins[at], ends[at] - begins[at]))
            done = int(ends[at])
        if done < rows.num_rows:
            yield Run(rows=rows.slice(done), atomic=True)

    def _too_large(self, rows: pa.RecordBatch) -> bool:
        bounds = byte_bounds(rows.column("payload"))
        if rows.num_rows > MOST_ROWS or bounds[-1] - bounds[0] > _MOST_BYTES:
            return True
        return bool(rows.column("lsn")[0].as_py() == self._large)

    def _one_by_one(self, rows: pa.RecordBatch) -> Run:
        lsn = rows.column("lsn")[0].as_py()
        if lsn != self._large:
            self._large = lsn
            structlog.get_logger().warning(
                "nats.not-atomic", lsn=str(Lsn(lsn)), most=MOST_ROWS, rows=rows.num_rows
            )
        return Run(rows=rows, atomic=False)
