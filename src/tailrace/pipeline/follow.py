"""Following the log in an open batch: parts as they become durable, until the batch has to end.

Pure but for the log: the clock and the reasons to end are passed in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.decode.decoder import Decoder
from tailrace.decode.merge import merged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tailrace.decode.group import Group
    from tailrace.log.format.mark import Mark
    from tailrace.log.reader import Log
    from tailrace.position import Position
    from tailrace.schema import Relation

LOOK_S = 0.1
"""How often the reasons to end are looked at."""
FAR_BYTES = 4 << 20
"""So much of the log at a time is read and delivered faster by a closed batch."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some changes; `whole` if they end with a transaction."""

    groups: list[Group]
    whole: bool


class Following:
    """Reads a log from a position on, as it grows.

    It ends after `max_rows` changes or `max_s` seconds, when `ends` is true for the position that
    it has reached, and when it is far behind the end of the log: closed batches are faster, because
    they read and deliver in two processes. `limit` returns how far a plan covers a range: it ends
    there, too.
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
        limit: Callable[[Position, Position], Position] = lambda _, upto: upto,
        clock: Callable[[], float],
    ) -> None:
        self._log = log
        self._decoder = Decoder(wanted=wanted, messages=messages)
        self._max_rows = max_rows
        self._max_s = max_s
        self._ends = ends
        self._limit = limit
        self._clock = clock
        self._rows = 0
        self.reached = after
        """Everything up to here has been yielded; the end of a transaction."""

    def parts(self) -> Iterator[Part | None]:
        """The changes, and None where the log has no more for now."""
        began_s = looked_s = self._clock()
        before: Mark | None = None
        while True:
            mark = self._log.end()
            if mark.position > self.reached:
                if before is not None and _is_far(before, mark):
                    return
                upto = self._limit(self.reached, mark.position)
                if upto > self.reached:
                    yield from self._read(upto, continues=before is not None)
                if upto < mark.position:
                    return
                before = mark
            else:
                yield None
                self._log.wait(self.reached, LOOK_S)
            now = self._clock()
            if self._rows >= self._max_rows or now - began_s >= self._max_s:
                return
            if now - looked_s >= LOOK_S:
                looked_s = now
                if self._ends(self.reached):
                    return

    def _read(self, upto: Position, *, continues: bool) -> Iterator[Part]:
        after = self.reached
        for entry in merged(self._log.read(after, upto, continues=continues)):
            self._rows += entry.changes
            groups = self._decoder.decode(entry, after, upto)
            if groups:
                yield Part(groups, entry.ends)
        self.reached = upto


def _is_far(before: Mark, mark: Mark) -> bool:
    """Whether much of the log is between two marks."""
    same = mark.sequence == before.sequence
    size = mark.offset - before.offset if same else mark.offset
    return mark.sequence > before.sequence + 1 or size > FAR_BYTES
