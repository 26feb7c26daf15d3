"""Which messages a destination has accepted, for the next attempt of their batch.

A destination that does not know our positions would get all messages of a replayed micro-batch
again. So each answer that accepts messages is noted at once (`places`), and a replay skips what is
noted: it repeats at most the requests that had no answer yet.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import pyarrow as pa

from tailrace.message import places_of
from tailrace.sinks.requests.places import Places

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from tailrace.position import Position

_LOOK_S = 0.05
"""How often to look at the files of other lanes."""


class Acknowledged:
    """The accepted messages of one lane. Without a folder nothing is noted."""

    def __init__(
        self,
        folder: Path | None = None,
        *,
        history: str = "",
        lane: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._places = Places(folder, history=history, lane=lane, suffix=".accepted")
        self._clock = clock
        self._looked_s, self._elsewhere_s = -math.inf, -math.inf

    def open(self, after: Position) -> None:
        """Begin a micro-batch after a position: load what earlier attempts have noted of it."""
        self._places.open(after)

    def missing(self, messages: pa.RecordBatch) -> pa.RecordBatch:
        """The messages that are not known to be accepted."""
        known = self.known(messages)
        return messages if known is None else messages.filter(pa.array(~known))

    def known(self, messages: pa.RecordBatch) -> NDArray[np.bool_] | None:
        """Which messages are known to be accepted; None if none is."""
        if not self._places or not messages.num_rows:
            return None
        found = self._places.known(places_of(messages))
        return found if found.any() else None

    def note(self, messages: pa.RecordBatch) -> None:
        """Note that messages were accepted. Called by several threads."""
        self._places.note(places_of(messages))

    def elsewhere_ago_s(self) -> float:
        """How long ago another lane last noted something; infinite if it never did.

        Lanes are processes of one machine, so the clock is the same.
        """
        now = self._clock()
        if now - self._looked_s >= _LOOK_S:
            self._looked_s = now
            noted = [path.stat() for path in self._places.others()]
            # A file that is empty was truncated, perhaps just now.
            times = [each.st_mtime for each in noted if each.st_size]
            self._elsewhere_s = now - (time.time() - max(times, default=-math.inf))
        return now - self._elsewhere_s

    def close(self) -> None:
        """Close the file."""
        self._places.close()
