"""A message fails for now, as often as it may be sent. Is it the message, or the destination?

If the destination accepted another message since, it is the message, and the message is parked. If
not, the destination may be down: the batch is replayed until it accepts something. That would never
end for a batch whose other messages are all delivered, because its messages are fixed and nothing
else is sent. So a message *in doubt* may be given up without that proof, by these rules:

| the message                              | may be given up                                       |
|------------------------------------------|-------------------------------------------------------|
| is parked, and was sent again (`retry`)  | at once: it is parked already, and stays so           |
| was given up by an earlier attempt       | at once, after it was sent again                      |
| is the first one in doubt                | after `alone_s` seconds. They double for each further |
|                                          | message, up to ten times, until something is accepted |
| is the first one, has no key, and holds  | after 1,440 times `alone_s`: a day by default         |
| its whole table back if it is parked     |                                                       |
| is a later one                           | when it is the first one                              |

Messages are only given up together with all others that are left. So an hour without an accepted
message costs at most eight keys per lane with the default of one minute, and none if there are more
in the batch; all others wait in the log.

    5f0c2a9e-0.failed       messages that were given up (`places`)
    0.doubt                 of lane 0: the first message in doubt, and since when
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tailrace.message import places_of
from tailrace.position import READS, RELEASED
from tailrace.sinks.requests.places import Places
from tailrace.state_file import StateFile

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from numpy.typing import NDArray

    from tailrace.position import Position
    from tailrace.sinks.contract import Lane

_LONGEST = 10
"""How many times `alone_s` a message waits at most."""
_WHOLE_TABLE = 1440
"""How many times it waits if it holds a whole table back."""
_AGAIN = np.uint64(READS | RELEASED)
"""The bits that ordinals of parked messages have when they are sent again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """The first message in doubt."""

    lsn: int
    ordinal: int
    since_s: float
    """In seconds since 1970: it lasts over restarts."""
    given_up: int
    """How many messages were given up since another one was accepted."""


class Doubts:
    """The messages of one lane that are in doubt."""

    def __init__(self, lane: Lane, *, now_s: Callable[[], float] = time.time) -> None:
        self._alone_s = lane.retry.alone_s
        self._now_s = now_s
        self._given_up = Places(
            lane.folder, history=lane.history, lane=lane.number, suffix=".failed"
        )
        self._file = (
            StateFile(lane.folder / f"{lane.number}.doubt", Doubt, durable=False)
            if lane.folder is not None
            else None
        )
        self._first: Doubt | None = None

    def open(self, after: Position) -> None:
        """Begin a micro-batch after a position: load what earlier attempts have noted."""
        self._given_up.open(after)
        self._first = self._file.read_or(None) if self._file is not None else None

    def has(self, messages: pa.RecordBatch) -> bool:
        """Whether an earlier attempt has given up one of these."""
        return bool(self._given_up) and bool(self._given_up.known(places_of(messages)).any())

    def note(self, messages: pa.RecordBatch) -> None:
        """Note that messages were given up because another one was accepted.

        If the batch is replayed, that other one is not sent again.
        """
        self._given_up.note(places_of(messages))

    def accepted(self) -> None:
        """Note that the destination has accepted something."""
        if self._first is not None:
            self._first = None
            if self._file is not None:
                self._file.remove()

    def give_up(self, places: NDArray[np.void], whole: NDArray[np.bool_]) -> bool:
        """Whether to give up messages: the only ones that are left, and nothing is accepted.

        `whole` says which of them would hold a whole table back.
        """
        again = (places["ordinal"] & _AGAIN) == _AGAIN
        waiting = ~again & ~self._given_up.known(places)
        places, whole = places[waiting], whole[waiting]
        for row in np.argsort(places).tolist():
            if not self._waited_for(places[row], whole=bool(whole[row])):
                return False
            self._given_up.note(places[row : row + 1])
        return True

    def _waited_for(self, place: np.void, *, whole: bool) -> bool:
        """Whether the pipeline has waited long enough for a message, which is the first one."""
        lsn, ordinal, now_s = int(place["lsn"]), int(place["ordinal"]), self._now_s()
        first, count = self._first, self._first.given_up if self._first is not None else 0
        same = first is not None and (first.lsn, first.ordinal) == (lsn, ordinal)
        # A clock that was set back begins the wait anew.
        if first is None or not same or first.since_s > now_s:
            first = Doubt(lsn=lsn, ordinal=ordinal, since_s=now_s, given_up=count)
        times = _WHOLE_TABLE if whole else min(1 << count, _LONGEST)
        enough = now_s - first.since_s >= self._alone_s * times
        if enough:
            first = Doubt(lsn=lsn, ordinal=ordinal, since_s=now_s, given_up=count + 1)
        self._first = first
        if self._file is not None:
            self._file.write(first)
        return enough

    def close(self) -> None:
        """Close the file."""
        self._given_up.close()
