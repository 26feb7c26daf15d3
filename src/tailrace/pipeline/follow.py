"""Following the log in an open batch: parts as they become durable, until the batch has to end.

Pure but for the log: the clock and the reasons to end are passed in.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.decode.decoder import Decoder
from tailrace.decode.merge import merged

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from tailrace.decode.group import Group
    from tailrace.log.format.mark import Mark
    from tailrace.log.reader import Log
    from tailrace.position import Position
    from tailrace.schema import Relation

LOOK_S = 0.1
"""How often the reasons to end are looked at."""
FAR_BYTES = 4 << 20
"""So much of the log at a time is far from its end."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some changes, none if no table of the entry is wanted; `whole` if they end with a
    transaction."""

    groups: list[Group]
    whole: bool


class Following:
    """Reads a log from a position on, as it grows.

    It ends after `max_rows` changes or `max_s` seconds, and when `ends` is true for the position
    that it has reached. With `near` it also ends when it is far from the end of the log. `limit`
    returns how far a plan covers a range: it ends there, too. What it reads after a pause of the
    log it collects for `linger_s`.
    """

    def __init__(
        self,
        log: Log,
        after: Position,
        *,
        wanted: Callable[[Relation], bool],
        messages: Callable[[str], bool],
        max_rows: int,
        max_s: float,
        ends: Callable[[Position], bool],
        near: bool = False,
        limit: Callable[[Position, Position], Position] = lambda _, upto: upto,
        linger_s: float = 0.0,
        clock: Callable[[], float],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._log = log
        self._decoder = Decoder(wanted=wanted, messages=messages)
        self._max_rows = max_rows
        self._max_s = max_s
        self._ends = ends
        self._near = near
        self._limit = limit
        self._linger_s = linger_s
        self._clock = clock
        self._sleep = sleep
        self._rows = 0
        self._range_bytes = 0
        self._began_s = self._looked_s = 0.0
        self.reached = after
        """Everything up to here has been yielded; the end of a transaction."""

    @property
    def far(self) -> bool:
        """Whether much of the log has been read since the last look at its end."""
        return self._range_bytes > FAR_BYTES

    def parts(self) -> Iterator[Part | None]:
        """The changes, and None where the log has no more for now."""
        self._began_s = self._looked_s = self._clock()
        before: Mark | None = None
        waited = False
        while True:
            mark = self._log.end()
            if mark.position > self.reached:
                if self._linger_s and waited:
                    self._sleep(self._linger_s)
                    mark = self._log.end()
                if self._near and before is not None and _is_far(before, mark):
                    return
                upto = self._limit(self.reached, mark.position)
                over = yield from self._read(upto, continues=before is not None)
                if over or upto < mark.position:
                    return
                before, waited = mark, False
            else:
                yield None
                self._log.wait(self.reached, LOOK_S)
                waited = True
            if self._is_over():
                return

    def _read(self, upto: Position, *, continues: bool) -> Generator[Part, None, bool]:
        """The parts up to a position; whether the batch has to end, at the latest there."""
        after, self._range_bytes = self.reached, 0
        if upto <= after:
            return False
        for entry in merged(self._log.read(after, upto, continues=continues)):
            self._rows += entry.changes
            self._range_bytes += len(entry.body)
            groups = self._decoder.decode(entry, after, upto)
            if entry.ends:
                self.reached = max(self.reached, min(entry.last, upto))
            if groups or entry.transactions:
                yield Part(groups, entry.ends)
            if entry.ends and self._is_over():
                return True
        self.reached = upto
        return False

    def _is_over(self) -> bool:
        """Whether the batch has to end."""
        now = self._clock()
        if self._rows >= self._max_rows or now - self._began_s >= self._max_s:
            return True
        if now - self._looked_s < LOOK_S:
            return False
        self._looked_s = now
        return self._ends(self.reached)


def _is_far(before: Mark, mark: Mark) -> bool:
    """Whether much of the log is between two marks."""
    same = mark.sequence == before.sequence
    size = mark.offset - before.offset if same else mark.offset
    return mark.sequence > before.sequence + 1 or size > FAR_BYTES
