"""Messages without a final answer, as columns: which are sent, which are ready, which wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.message import MESSAGES, places_of
from tailrace.position import Lsn, Position
from tailrace.sinks.groups import Groups, groups_of
from tailrace.sinks.rabbitmq.waits import Followers, edges_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tailrace.sinks.rabbitmq.waits import Edges, Numbers

_STATE = np.dtype(
    [
        ("undecided", "?"),
        ("waits", "<i8"),  # for so many edges
        ("tag", "<i8"),  # of the attempt in flight; 0: none is
        ("attempts", "<i8"),
        ("due_s", "<f8"),  # when it may be sent again
        ("began_s", "<f8"),  # when it was first sent
        ("accepted_before", "<i8"),  # how many messages had been accepted then
        ("final", "?"),  # whether there is no other attempt
        ("bytes", "<i8"),  # of the payload
    ]
)
_NO_EDGES: Edges = (np.empty(0, np.int64), np.empty(0, np.int64))


class Pool:
    """The messages. Rows are numbered from 0, anew after each `add`."""

    def __init__(self, *, ordered: bool) -> None:
        self._ordered = ordered
        self.messages = pa.RecordBatch.from_pylist([], schema=MESSAGES)
        self.state = np.zeros(0, _STATE)
        self.undecided = 0
        self._followers = Followers.of(_NO_EDGES, 0)
        self.groups: Groups = groups_of(self.messages)

    def add(self, batch: pa.RecordBatch) -> None:
        """Add messages, after all others; forget those that are decided."""
        kept = self.state["undecided"]
        rest = self.messages.filter(pa.array(kept)) if not kept.all() else self.messages
        self.messages = pa.concat_batches([rest, batch]) if rest.num_rows else batch
        added = np.zeros(batch.num_rows, _STATE)
        added["undecided"] = True
        added["bytes"] = pc.binary_length(batch.column("payload")).to_numpy()
        self.state = np.concatenate([self.state[kept], added])
        self.groups = groups_of(self.messages)
        edges = edges_of(self.groups) if self._ordered else _NO_EDGES
        count = len(self.state)
        self._followers = Followers.of(edges, count)
        self.state["waits"] = np.bincount(edges[1], minlength=count)
        self.undecided = count

    def ready(self, now_s: float) -> Numbers:
        """The rows to send now."""
        state = self.state
        chosen = self._sendable() & ~state["final"] & (state["due_s"] <= now_s)
        return np.flatnonzero(chosen)

    def waiting(self) -> Numbers:
        """The rows that would be in flight, were it not for their last attempt."""
        return np.flatnonzero(self._sendable())

    def _sendable(self) -> NDArray[np.bool_]:
        state = self.state
        found: NDArray[np.bool_] = state["undecided"] & (state["waits"] == 0) & (state["tag"] == 0)
        return found

    def in_flight(self) -> Numbers:
        """The rows that were sent and have no answer."""
        return np.flatnonzero(self.state["tag"])

    def with_tag(self, tag: int, *, multiple: bool) -> Numbers:
        """The rows that a confirm is about."""
        tags = self.state["tag"]
        return np.flatnonzero((tags > 0) & (tags <= tag) if multiple else tags == tag)

    def take(self, rows: Numbers) -> pa.RecordBatch:
        """Some of the messages."""
        first, count = int(rows[0]), len(rows)
        if int(rows[-1]) - first + 1 == count:
            return self.messages.slice(first, count)
        return self.messages.take(pa.array(rows))

    def places(self, rows: Numbers) -> pa.RecordBatch:
        """The positions of some of the messages."""
        return self.messages.select(["lsn", "ordinal"]).take(pa.array(rows))

    def decide(self, rows: Numbers) -> None:
        """Rows have their final answer: nothing waits for them any more."""
        state = self.state
        state["undecided"][rows], state["tag"][rows] = False, 0
        self.undecided -= len(rows)
        np.subtract.at(state["waits"], self._followers.after(rows), 1)

    def decided_upto(self) -> Position | None:
        """The last position before every undecided message; None if there is none."""
        if not self.undecided:
            return None
        places = places_of(self.messages)[self.state["undecided"]]
        lsn = int(places["lsn"].min())
        ordinal = int(places["ordinal"][places["lsn"] == lsn].min())
        return Position(Lsn(lsn), ordinal - 1) if ordinal else Position(Lsn(lsn - 1), 1 << 63)
