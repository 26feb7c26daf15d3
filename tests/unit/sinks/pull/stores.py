"""Messages with chosen keys, and stores that hold them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from tailrace.message import GROUP, HEADERS, MESSAGES
from tailrace.position import ORIGIN, Lsn, Position
from tailrace.sinks.ledger import LanePosition
from tailrace.sinks.pull.database import in_folder
from tailrace.sinks.pull.intake import Intake
from tailrace.sinks.pull.queue import Queue, Rules

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

RULES = Rules(max_out=1000, max_deliveries=0, max_bytes=2**30)
MAX_BYTES = 2**30


@dataclass(frozen=True, slots=True)
class Change:
    """A message. Without a key it concerns its whole table."""

    key: str | None = "a"
    former: str | None = None
    """The old key of an update that changed it."""
    table: int = 1
    payload: bytes | None = None
    """Without it, the number of the message."""


def batch_of(changes: Sequence[Change], first: int) -> pa.RecordBatch:
    """Changes as MESSAGES. Their ids are numbers from `first` on."""
    numbers = range(first, first + len(changes))
    return pa.record_batch(
        [
            pa.array([b"t%d" % each.table for each in changes], pa.binary()),
            pa.array([b"%d" % number for number in numbers], pa.binary()),
            pa.array([None if each.key is None else each.key.encode() for each in changes]),
            pa.array(
                [
                    b"%d" % number if each.payload is None else each.payload
                    for number, each in zip(numbers, changes, strict=True)
                ],
                pa.binary(),
            ),
            pa.array(numbers, pa.uint64()),
            pa.array([0] * len(changes), pa.uint64()),
            pa.array([0] * len(changes), pa.int64()),
            pa.array([each.table for each in changes], pa.uint64()),
            pa.array([None if each.former is None else each.former.encode() for each in changes]),
            pa.nulls(len(changes), HEADERS),
            pa.nulls(len(changes), GROUP),
        ],
        schema=MESSAGES,
    )


class Store:
    """A store in a folder, with its intake and its queue."""

    def __init__(
        self, folder: Path, rules: Rules = RULES, *, latest: bool = False, ordered: bool = True
    ) -> None:
        self._folder = folder
        self._rules = rules
        self._latest = latest
        self._ordered = ordered
        self.count = 0
        """How many messages were added."""
        self.open()

    def open(self) -> None:
        path = in_folder(self._folder)
        self.intake = Intake(path, lane=0, ordered=self._ordered, latest=self._latest)
        self.intake.claim()
        self.queue = Queue(path, self._rules)

    def close(self) -> None:
        self.intake.close()
        self.queue.close()

    def add(
        self, changes: Sequence[Change], *, now_ms: int = 0, max_bytes: int = MAX_BYTES
    ) -> bool:
        batch = batch_of(changes, self.count + 1)
        self.count += len(changes)
        return self.intake.add(batch, position_of(self.count), now_ms=now_ms, max_bytes=max_bytes)


def position_of(number: int) -> LanePosition:
    return LanePosition(
        position=Position(Lsn(number)), after=ORIGIN, source="", lane=0, lanes=1, count=0, digest=0
    )
