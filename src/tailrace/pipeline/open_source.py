"""What the task of an open batch reads, for how long, and what ends it early."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.backfill.spool import Spool
from tailrace.errors import SinkFencedError
from tailrace.open_batch import OpenBatches
from tailrace.parking.parking import orders_wait
from tailrace.pipeline.follow import Following
from tailrace.pipeline.frames.frame import wanted_by
from tailrace.pipeline.source.planner import PlannedVersions, due
from tailrace.tables import Prefixes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tailrace.log.reader import Log
    from tailrace.open_batch import OpenBatch
    from tailrace.pipeline.spec import Spec
    from tailrace.position import Position


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSource:
    """The log and the limits of a pipeline's open batches."""

    log: Path
    spool: Path
    records: Path
    """The folder of `OpenBatches`."""
    spec: Spec
    max_rows: int
    max_s: float
    """0: no batch is open."""
    parked: Path | None = None
    """The folder with parked messages; None if nothing is parked."""
    far: bool = False
    """Whether batches may be open far from the end of the log, too."""

    def follow(
        self, log: Log, batch: OpenBatch, *, page: int, versions: PlannedVersions | None = None
    ) -> Following:
        """Follow the log in a batch, from where an earlier task of the batch has come to.

        It ends on request, for a page of a backfill after the number `page`, and before a version
        of a table that is not among `versions`.
        """
        records = OpenBatches(self.records)
        return Following(
            log,
            records.begin(batch),
            wanted=wanted_by(self.spec.wanted()),
            messages=Prefixes(self.spec.messages),
            max_rows=self.max_rows,
            max_s=self.max_s,
            ends=self._ends(log, records, page),
            near=not self.far,
            limit=_covered(log, versions),
            linger_s=self.spec.linger_s,
            clock=time.monotonic,
        )

    def _ends(self, log: Log, records: OpenBatches, page: int) -> Callable[[Position], bool]:
        spool, parked, parent = Spool(self.spool), self.parked, os.getppid()

        def ends(reached: Position) -> bool:
            if os.getppid() != parent:
                raise SinkFencedError("Spark has ended")
            if records.close_requested or (parked is not None and orders_wait(parked)):
                return True
            numbers = list(spool.numbers(page))
            return bool(numbers) and due(spool.page(numbers[0]), log.end(), reached)

        return ends


def _covered(
    log: Log, versions: PlannedVersions | None
) -> Callable[[Position, Position], Position]:
    """How far a plan covers a range. The first range includes the versions in force."""
    first = True

    def covered(after: Position, upto: Position) -> Position:
        nonlocal first
        if versions is None:
            return upto
        found = versions.uncovered(log, after, upto, in_force=first)
        first = False
        return upto if found is None else max(found[0], after)

    return covered
