"""What a pipeline has delivered: everything up to a position, and single messages beyond it.

With one lane the position is enough, unless messages of the batch were parked: its files have every
message up to it. A parked message is none of them, and a replay must find it. With several lanes a
position covers the messages of one lane only, and which ones those are depends on the micro-batch:
an update that changes a key joins two lanes (`tailrace.pipeline.lanes`). A replay gives a message
to another lane if the pipeline was changed, or if a power cut took the plan of the batch. Therefore
a lane then records the positions of its messages one by one, from the start of its micro-batch. A
sink that takes over skips what any lane has recorded.

Example: lane 1 of 2 has delivered the messages 3 and 5 of the micro-batch after 1, and the process
dies. In the replay lane 0 has the messages 2, 3, 4 and 5. It skips 3 and 5 and delivers 2 and 4.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import numpy as np
import pyarrow as pa
import zstandard

from tailrace.message import rows_up_to
from tailrace.position import ORIGIN, Lsn, Position

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    Numbers = NDArray[np.uint64]

_NONE = np.empty(0, np.uint64)


@dataclass(frozen=True, slots=True, eq=False)
class Positions:
    """A set of positions, in order."""

    lsn: Numbers = field(default_factory=_NONE.copy)
    ordinal: Numbers = field(default_factory=_NONE.copy)

    def __len__(self) -> int:
        return len(self.lsn)

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> Self:
        """Those of messages, which are in order."""
        return cls(batch.column("lsn").to_numpy(), batch.column("ordinal").to_numpy())

    @classmethod
    def union(cls, sets: Iterable[Positions]) -> Self:
        """All that are in one of several sets."""
        some = [each for each in sets if len(each)]
        if not some:
            return cls()
        lsn = np.concatenate([each.lsn for each in some])
        ordinal = np.concatenate([each.ordinal for each in some])
        order = np.lexsort((ordinal, lsn))
        lsn, ordinal = lsn[order], ordinal[order]
        first = np.ones(len(lsn), np.bool_)
        first[1:] = (lsn[1:] != lsn[:-1]) | (ordinal[1:] != ordinal[:-1])
        return cls(lsn[first], ordinal[first])

    def copy(self) -> Positions:
        """The same positions, without the messages that they are a view of."""
        return Positions(self.lsn.copy(), self.ordinal.copy())

    def beyond(self, position: Position) -> Positions:
        """Those after a position."""
        start = self.count_up_to(position)
        return Positions(self.lsn[start:], self.ordinal[start:])

    def count_up_to(self, position: Position) -> int:
        """How many are at or before a position."""
        lsn = np.uint64(position.lsn)
        first, end = np.searchsorted(self.lsn, lsn), np.searchsorted(self.lsn, lsn, "right")
        same = np.searchsorted(self.ordinal[first:end], np.uint64(position.ordinal), "right")
        return int(first + same)

    def reach(self, position: Position) -> bool:
        """Whether one of them is at or after a position."""
        if not len(self):
            return False
        return (int(self.lsn[-1]), int(self.ordinal[-1])) >= (position.lsn, position.ordinal)

    def hold(self, others: Positions) -> NDArray[np.bool_]:
        """For each of other positions, whether it is one of these."""
        own = set(zip(self.lsn.tolist(), self.ordinal.tolist(), strict=True))
        pairs = zip(others.lsn.tolist(), others.ordinal.tolist(), strict=True)
        return np.array([pair in own for pair in pairs], np.bool_)

    def dump(self) -> str:
        """As text: a few bytes per position."""
        if not len(self):
            return ""
        steps = np.diff(self.lsn, prepend=np.uint64(0))
        packed = zstandard.ZstdCompressor().compress(np.stack([steps, self.ordinal]).tobytes())
        return base64.b64encode(packed).decode()

    @classmethod
    def load(cls, text: str) -> Self:
        """Read the text."""
        if not text:
            return cls()
        raw = zstandard.ZstdDecompressor().decompress(base64.b64decode(text))
        steps, ordinal = np.frombuffer(raw, np.uint64).reshape(2, -1)
        return cls(np.cumsum(steps, dtype=np.uint64), ordinal)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Progress:
    """The messages up to `complete`, and those in `beyond`."""

    complete: Position = ORIGIN
    beyond: Positions = field(default_factory=Positions)

    def __or__(self, other: Progress) -> Progress:
        complete = max(self.complete, other.complete)
        return Progress(
            complete=complete,
            beyond=Positions.union([self.beyond, other.beyond]).beyond(complete),
        )

    def missing(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The messages that are not delivered."""
        rows = batch.slice(rows_up_to(batch, self.complete))
        # Usually the rows come after all of them: what follows runs in replays only.
        if not rows.num_rows or not self.beyond.reach(first_of(rows)):
            return rows
        return rows.filter(pa.array(~self.beyond.hold(Positions.of(rows))))


def first_of(batch: pa.RecordBatch) -> Position:
    """The position of the first message."""
    return Position(Lsn(batch.column("lsn")[0].as_py()), batch.column("ordinal")[0].as_py())
