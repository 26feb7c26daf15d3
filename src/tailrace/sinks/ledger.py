"""Exactly once: what a lane has committed to a sink, and which rows of a replayed batch are left.

For sinks that store a position with the messages, in one transaction. With one lane a position is
enough: the sink holds everything up to it. With several lanes a position
covers the lane's own messages only, and which messages those are depends on the micro-batch: an
update that changes a key joins two lanes (`tailrace.pipeline.lanes`). Therefore the position is
stored with a count and a digest of the messages it covers. The ledger skips rows only if they are
exactly those messages. Otherwise it refuses the batch and nothing is sent: a message would be lost
or delivered twice.

Example: lane 0 of 2 has committed the messages 2, 4 and 6 and the process dies before Spark writes
its checkpoint. Spark replays the batch.

| the replay gives lane 0 | the ledger                                                         |
|-------------------------|--------------------------------------------------------------------|
| 2, 4, 6, 8              | skips 2, 4 and 6, sends 8                                          |
| 2, 6, 8                 | refuses: count and digest of (2, 6) are not those of (2, 4, 6)     |
| 2, 3, 4, 6              | refuses: 3 was not committed by this lane, it may be in another    |
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tailrace.checkpoint import RESET
from tailrace.errors import DivergedError, SinkRefusedError
from tailrace.message import last_of, rows_up_to
from tailrace.position import ORIGIN, Position

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

_MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))
_WRAP = 1 << 64


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneId:
    """One of a pipeline's lanes, and the source (database history) that its positions belong to."""

    number: int = 0
    lanes: int = 1
    source: str = ""
    reset: bool = False
    """Whether the pipeline was reset, so that positions of other sources do not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LanePosition:
    """A lane has committed all its messages up to `position`.

    `count` and `digest` cover the messages after `after`, the start of the micro-batch.
    """

    position: Position
    after: Position
    source: str
    lane: int
    lanes: int
    count: int
    digest: int

    def dump(self) -> bytes:
        """The text that a sink stores."""
        return json.dumps(
            {
                "position": str(self.position),
                "after": str(self.after),
                "source": self.source,
                "lane": self.lane,
                "lanes": self.lanes,
                "count": self.count,
                "digest": f"{self.digest:016x}",
            }
        ).encode()

    @classmethod
    def load(cls, value: bytes) -> LanePosition:
        """Read what a sink has stored."""
        fields = json.loads(value)
        return cls(
            position=Position.parse(fields["position"]),
            after=Position.parse(fields["after"]),
            source=fields["source"],
            lane=fields["lane"],
            lanes=fields["lanes"],
            count=fields["count"],
            digest=int(fields["digest"], 16),
        )


@dataclass(slots=True)
class Tally:
    """The count and a digest of a set of messages, whatever their order and their batches."""

    count: int = 0
    digest: int = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Add the messages of a batch.

        The digest is the sum of a hash per position, so it does not depend on how rows are cut into
        batches. The hashes are computed column by column: this runs for every message.
        """
        mixed = batch.column("lsn").to_numpy() * _MIX[0]
        mixed ^= batch.column("ordinal").to_numpy() * _MIX[1]
        mixed ^= mixed >> np.uint64(29)
        self.count += batch.num_rows
        self.digest = (self.digest + int(np.sum(mixed * _MIX[1], dtype=np.uint64))) % _WRAP


class Ledger:
    """One lane's account. `stored` is the position of each lane as the sink holds it.

    `system` is the sink's name in errors, and `guide` its page.
    """

    def __init__(
        self, lane: LaneId, stored: Mapping[int, LanePosition], *, system: str, guide: str
    ) -> None:
        self._lane = lane
        self._guide = guide
        foreign = [position for position in stored.values() if position.source != lane.source]
        if foreign and not lane.reset:
            raise DivergedError(
                f"{system} holds the position of lane {foreign[0].lane} in the log "
                f"{foreign[0].source}, but this log is {lane.source or 'without an id'}",
                hint=RESET,
            )
        own = {
            number: position
            for number, position in stored.items()
            if position.source == lane.source
        }
        self.stored = own.get(lane.number)
        self._other_layouts = [
            position for position in own.values() if position.lanes != lane.lanes
        ]
        self._after = self._last = ORIGIN
        self._batch = Tally()
        self._skipped = Tally()
        self._verified = True
        self.mark()

    def open(self, after: Position) -> None:
        """Begin a micro-batch that starts after this position."""
        for other in self._other_layouts:
            if other.position > after:
                raise SinkRefusedError(
                    f"lane {other.lane} of {other.lanes} has committed a batch that other lanes "
                    f"have not, and the pipeline now has {self._lane.lanes} lanes",
                    hint=f"Run once with `lanes: {other.lanes}`, then change the number.",
                )
        self._after = self._last = after
        self._batch, self._skipped = Tally(), Tally()
        self._verified = self._lane.lanes == 1 or not self.ahead
        self.mark()

    def mark(self) -> None:
        """Note the rows up to here as decided."""
        self._marked = (replace(self._batch), replace(self._skipped), self._last, self._verified)

    def rewind(self) -> None:
        """Forget the rows since the last mark: they are written again, or some of them."""
        batch, skipped, self._last, self._verified = self._marked
        self._batch, self._skipped = replace(batch), replace(skipped)

    @property
    def ahead(self) -> bool:
        """Whether the sink holds more than the checkpoint."""
        return self.stored is not None and self.stored.position > self._after

    def held(self, batch: pa.RecordBatch) -> int:
        """How many of the first rows the sink holds."""
        return 0 if self.stored is None else rows_up_to(batch, self.stored.position)

    def missing(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that the sink does not hold. All rows count for the position to commit."""
        known = self.held(batch)
        if self.stored is not None and known:
            rows = batch.slice(0, known)
            # `stored` covers one micro-batch; rows before its start are of earlier ones.
            self._skipped.add(rows.slice(rows_up_to(rows, self.stored.after)))
        if known < batch.num_rows:
            self.verify(passed=True)
        if batch.num_rows:
            self._batch.add(batch)
            self._last = last_of(batch)
        return batch.slice(known)

    def verify(self, *, passed: bool = False) -> None:
        """Fail unless the skipped rows are the stored ones. `passed`: later rows follow."""
        stored = self.stored
        if self._verified or stored is None or not (self._skipped.count or passed):
            return
        if (self._skipped.count, self._skipped.digest) != (stored.count, stored.digest):
            raise SinkRefusedError(
                f"lane {self._lane.number} has committed {stored.count} messages up to "
                f"{stored.position}, and the replayed batch has other messages",
                hint=f"The pipeline has changed within a batch. See {self._guide}, Lanes.",
            )
        self._verified = True

    def to_commit(self) -> LanePosition | None:
        """The position to store with this batch; None if the sink already holds it all."""
        if not self._batch.count:
            return None
        if self.stored is not None and self._last <= self.stored.position:
            return None
        return LanePosition(
            position=self._last,
            after=self._after,
            source=self._lane.source,
            lane=self._lane.number,
            lanes=self._lane.lanes,
            count=self._batch.count,
            digest=self._batch.digest,
        )
