"""How far a follower is behind, and whether that is too much to keep the log for it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.errors import TailraceError
from tailrace.log.format import mark as marks
from tailrace.log.format.mark import Mark
from tailrace.log.format.segment import list_segments
from tailrace.log.segments import Segments

if TYPE_CHECKING:
    from tailrace.config.replication import Replication
    from tailrace.log.store import Store
    from tailrace.position import Position

_HOUR_MICROS = 3_600_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """What a follower lacks."""

    bytes: int | None = None
    seconds: float | None = None
    position: Position | None = None
    """The log is kept from here on; None if the follower has nothing yet."""
    too_much: bool = False


class Lag:
    """Measures one follower. Looks at the size of every segment that is lacking."""

    def __init__(self, store: Store, settings: Replication) -> None:
        self._store = store
        self._log = Segments(store)
        self._settings = settings
        self.held: Mark | None = None
        """What the follower has acknowledged."""

    def resume(self, position: Position | None) -> None:
        """What the follower had when this machine last knew it: the beginning of that segment."""
        if position is None:
            return
        log = self._log
        with contextlib.suppress(TailraceError):
            names = [name for name in log.segments() if log.header(name).base <= position]
            if names:
                header = log.header(names[-1])
                self.held = Mark(
                    sequence=names[-1].sequence, offset=0, position=position,
                    end_lsn=header.base_end_lsn, time=header.base_time, epoch=header.epoch,
                )  # fmt: skip

    def measure(self) -> Distance:
        """The distance between the log's end and the follower's."""
        end, held = marks.peek(self._store), self.held
        if end is None or held is None:
            return Distance()
        lacking = max(self._bytes_between(held, end), 0)
        micros = max(end.time - held.time, 0) if lacking else 0
        settings = self._settings
        too_much = lacking > settings.max_lag_bytes or (
            micros > settings.max_lag_hours * _HOUR_MICROS
        )
        return Distance(
            bytes=lacking, seconds=micros / 1e6, position=self._needed(held), too_much=too_much
        )

    def _needed(self, held: Mark) -> Position:
        """The beginning of the segment in which the follower's mark is: the leader compares its end
        with it. Where that is missing already, the mark."""
        with contextlib.suppress(TailraceError):
            for name in self._log.segments():
                if name.sequence == held.sequence:
                    return self._log.header(name).base
        return held.position

    def _bytes_between(self, held: Mark, end: Mark) -> int:
        if held.sequence == end.sequence:
            return end.offset - held.offset
        sizes = 0
        for name in list_segments(self._store):
            if held.sequence <= name.sequence < end.sequence:
                with contextlib.suppress(FileNotFoundError):
                    # Deleted meanwhile: nothing keeps it for this follower any more.
                    sizes += self._store.size(name.file)
        return sizes - held.offset + end.offset
