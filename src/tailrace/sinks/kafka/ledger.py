"""What a lane has delivered, and what of a batch that comes again is left to deliver.

With one lane a position says it all: everything up to it is in Kafka. With several it speaks of the
lane's own messages, and which those are hangs on the micro-batch: a changed key joins lanes. So the
position comes with a count and a digest of what it covers, and skipping is only right if exactly
those messages are skipped. If not, nothing is sent: a message would be lost or come twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import structlog

from tailrace.errors import SinkRefusedError
from tailrace.position import ORIGIN, Lsn, Position
from tailrace.sinks.kafka.positions import Reached

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt
    import pyarrow as pa

_MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))
_WRAP = 1 << 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """A lane of a pipeline, and the source whose positions it speaks of."""

    number: int = 0
    of: int = 1
    source: str = ""


@dataclass(slots=True)
class Tally:
    """How many messages, and which."""

    count: int = 0
    digest: int = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Count these as well."""
        mixed = batch.column("lsn").to_numpy() * _MIX[0]
        mixed ^= batch.column("ordinal").to_numpy() * _MIX[1]
        mixed ^= mixed >> np.uint64(29)
        self.count += batch.num_rows
        self.digest = (self.digest + int(np.sum(mixed * _MIX[1], dtype=np.uint64))) % _WRAP


class Ledger:
    """One lane's account. `stored` is what Kafka holds of it."""

    def __init__(self, lane: Lane, stored: Mapping[int, Reached]) -> None:
        self._lane = lane
        self._others = [one for one in stored.values() if one.lanes != lane.of]
        self.stored = stored.get(lane.number)
        foreign = [one for one in stored.values() if one.source != lane.source]
        if foreign:
            # Its positions are of another history, and say nothing about this one.
            structlog.get_logger().warning(
                "kafka.other-source", was=foreign[0].source, now=lane.source
            )
            self._others = [one for one in self._others if one not in foreign]
            self.stored = None if self.stored in foreign else self.stored
        self._after = self._last = ORIGIN
        self._given = Tally()
        self._skipped = Tally()
        self._verified = True

    def open(self, after: Position) -> None:
        """A micro-batch begins behind `after`."""
        for other in self._others:
            if other.position > after:
                raise SinkRefusedError(
                    f"lane {other.lane} of {other.lanes} has delivered a batch that others have "
                    f"not, and now there are {self._lane.of} lanes",
                    hint=f"Run once with `lanes: {other.lanes}`, then change it.",
                )
        self._after = self._last = after
        self._given, self._skipped = Tally(), Tally()
        self._verified = self._lane.of == 1 or not self.ahead

    @property
    def ahead(self) -> bool:
        """Whether Kafka holds more than the checkpoint knows."""
        return self.stored is not None and self.stored.position > self._after

    def missing(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that Kafka does not hold. All rows count as given."""
        held = 0 if self.stored is None else upto(batch, self.stored.position)
        if self.stored is not None and held:
            rows = batch.slice(0, held)
            self._skipped.add(rows.slice(upto(rows, self.stored.after)))
        if held < batch.num_rows:
            self.verify(passed=True)
        if batch.num_rows:
            self._given.add(batch)
            self._last = last_of(batch)
        return batch.slice(held)

    def verify(self, *, passed: bool = False) -> None:
        """Make sure that what was skipped is what is stored."""
        bound = self.stored
        if self._verified or bound is None or not (self._skipped.count or passed):
            return
        if (self._skipped.count, self._skipped.digest) != (bound.count, bound.digest):
            raise SinkRefusedError(
                f"lane {self._lane.number} has delivered {bound.count} messages up to "
                f"{bound.position}, and they are not those that come now",
                hint="The pipeline has changed within a batch. See docs/guides/kafka.md, Lanes.",
            )
        self._verified = True

    def reached(self) -> Reached | None:
        """What is true once all that was given is in Kafka; None if it is already."""
        if not self._given.count:
            return None
        if self.stored is not None and self._last <= self.stored.position:
            return None
        return Reached(
            position=self._last,
            after=self._after,
            source=self._lane.source,
            lane=self._lane.number,
            lanes=self._lane.of,
            count=self._given.count,
            digest=self._given.digest,
        )


def upto(batch: pa.RecordBatch, position: Position) -> int:
    """How many rows are not beyond a position."""
    lsn: npt.NDArray[np.uint64] = batch.column("lsn").to_numpy()
    ordinal: npt.NDArray[np.uint64] = batch.column("ordinal").to_numpy()
    same = lsn == np.uint64(position.lsn)
    beyond = (lsn > np.uint64(position.lsn)) | (same & (ordinal > np.uint64(position.ordinal)))
    return len(beyond) - int(np.count_nonzero(beyond))


def last_of(batch: pa.RecordBatch) -> Position:
    """Where the last row stands."""
    return Position(Lsn(batch.column("lsn")[-1].as_py()), batch.column("ordinal")[-1].as_py())
