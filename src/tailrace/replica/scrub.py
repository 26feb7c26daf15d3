"""Scrub: a follower reads its sealed segments again and again, and fetches what it cannot read.

Bits rot in files that no process reads. A copy is there for the day when the leader is lost, and
then it is too late to find them. So the follower reads all sealed segments when it has started, and
again every `scrub_hours`: a slice at a time, between the frames of its leader.

    read ─► damaged ─► FETCH ─► pieces ─► check ─► install      `repairs` counts
               ▲                   │         │
               └── again later ◄───┴─────────┘                  leader's damaged, disk full, …

The last segment is not sealed: opening the copy checks it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from tailrace.errors import (
    CorruptError,
    DiskFullError,
    MalformedError,
    PositionLostError,
    TailraceError,
    error_of,
)
from tailrace.log.format.segment import list_segments
from tailrace.log.sealed import Reading, header_after, index_is_whole
from tailrace.replica.fetching import SLICE_BYTES, Fetching
from tailrace.replica.frames import Fetch, Type

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.config.replication import Replication
    from tailrace.log.format.segment import SegmentName
    from tailrace.observe.figure import Recorder
    from tailrace.observe.replica import FollowingFigures
    from tailrace.replica.connection import Connection
    from tailrace.replica.copy import Copy
    from tailrace.replica.frames import Data, Fetched

PAUSE_S = 0.05
"""Between two slices: 20 MB/s at most, so that a disk has time for its other work."""
_HOUR_S = 3600.0


@dataclass(slots=True)
class _Damage:
    """A segment that cannot be read."""

    name: SegmentName
    good_bytes: int
    found: str
    reason: str = ""
    """What was found, and why it could not be repaired."""
    due_at: float = float("-inf")
    """When to ask the leader for it."""

    def __post_init__(self) -> None:
        self.reason = self.reason or self.found


class Scrub:
    """Reads and repairs the copy, over one connection after another."""

    def __init__(
        self, copy: Copy, settings: Replication, counts: Recorder[FollowingFigures]
    ) -> None:
        self._copy = copy
        self._settings = settings
        self._counts = counts
        self._due_at = float("-inf")
        self._slice_at = float("-inf")
        self._pass: Iterator[None] | None = None
        self._done = -1
        """The last segment that this pass has read."""
        self._damaged: dict[int, _Damage] = {}
        self._fetching: Fetching | None = None
        self._checking: Iterator[None] | None = None
        self._events = structlog.get_logger()

    @property
    def reason(self) -> str:
        """What cannot be read; empty if everything can, as far as it is known."""
        others = f" (and {len(self._damaged) - 1} more)" if len(self._damaged) > 1 else ""
        return next((each.reason + others for each in self._damaged.values()), "")

    def wait_s(self, now: float, at_most: float) -> float:
        """How long the follower may wait for its leader before the next `step`."""
        busy = self._pass is not None or self._checking is not None or self._damaged
        if not busy and not self._pass_is_due(now):
            return at_most
        return min(max(self._slice_at + PAUSE_S - now, 0.0), at_most)

    def _pass_is_due(self, now: float) -> bool:
        return self._settings.scrub_hours > 0 and now >= self._due_at

    def begin(self) -> None:
        """A leader has connected: ask it for what is damaged. Another one may have it."""
        self.end()
        for each in self._damaged.values():
            each.due_at = float("-inf")

    def end(self) -> None:
        """The connection has ended, and with it what was being fetched."""
        self._drop_fetched()
        self._pass = None

    def _drop_fetched(self) -> None:
        if self._fetching is not None:
            self._fetching.drop()
        self._fetching = self._checking = None

    def step(self, now: float, connection: Connection) -> None:
        """Do one slice of what is to be done."""
        if now < self._slice_at + PAUSE_S:
            return
        self._slice_at = now
        self._forget_removed()
        if self._checking is not None:
            self._check(now)
        elif self._fetching is None and (due := self._due(now)):
            self._fetching = Fetching(self._copy.store, due.name, good_bytes=due.good_bytes)
            connection.send(Type.FETCH, Fetch(due.name.sequence).encode())
        else:
            self._read(now)

    def _due(self, now: float) -> _Damage | None:
        return next((each for each in self._damaged.values() if each.due_at <= now), None)

    def _forget_removed(self) -> None:
        """What was deleted with the leader's log, or cut, is no damage any more, and must not come
        back: there would be a hole behind it."""
        if not self._damaged:
            return
        sealed = set(self._sealed())
        for sequence, each in list(self._damaged.items()):
            if each.name not in sealed:
                del self._damaged[sequence]
                if self._fetching is not None and self._fetching.name == each.name:
                    self._drop_fetched()

    def _sealed(self) -> list[SegmentName]:
        mark = self._copy.mark
        names = list_segments(self._copy.store)
        return [] if mark is None else [name for name in names if name.sequence < mark.sequence]

    def _read(self, now: float) -> None:
        if self._pass is None:
            if not self._pass_is_due(now):
                return
            self._pass = self._read_on()
        try:
            next(self._pass)
        except StopIteration:
            self._pass, self._done = None, -1
            self._due_at = now + self._settings.scrub_hours * _HOUR_S
            self._counts.add(scrubs=1)

    def _read_on(self) -> Iterator[None]:
        """Read every sealed segment that this pass has not read yet."""
        read = 0
        while names := [name for name in self._sealed() if name.sequence > self._done]:
            reading = Reading(self._copy.store, names[0], header_after(self._copy.store, names[0]))
            try:
                yield from reading.slices(SLICE_BYTES)
                if not index_is_whole(self._copy.store, names[0]):
                    raise CorruptError(f"{names[0].index} has damaged rows")
            except CorruptError as error:
                self._note_damage(names[0], reading.good_bytes, error)
            except FileNotFoundError:
                # Deleted meanwhile, as the leader's.
                pass
            self._done = names[0].sequence
            read += reading.good_bytes
            if read >= SLICE_BYTES:
                read = 0
                yield

    def _note_damage(self, name: SegmentName, good_bytes: int, error: CorruptError) -> None:
        if name.sequence not in self._damaged:
            self._damaged[name.sequence] = _Damage(name, good_bytes, str(error))
            self._events.error("replica.segment_damaged", code=error.code, reason=str(error))

    def take(self, data: Data, now: float) -> None:
        """A piece of the segment that is being fetched. The rest of one that was given up."""
        if self._fetching is not None and self._checking is None:
            try:
                self._fetching.write(data)
            except (DiskFullError, MalformedError) as error:
                self._give_up(error, now)

    def finish(self, fetched: Fetched, now: float) -> None:
        """The leader has sent everything, or refuses to."""
        fetching = self._fetching
        if fetching is None or self._checking is not None:
            return
        if fetched.sequence != fetching.name.sequence:
            # Of one that was given up.
            return
        if fetched.code:
            refusal = error_of(fetched.code)(f"the leader refuses: {fetched.message}")
            self._give_up(refusal, now)
        else:
            self._checking = fetching.check(fetched)

    def _check(self, now: float) -> None:
        """Read a slice of what has come, and install it at the end."""
        assert self._fetching is not None
        assert self._checking is not None
        try:
            next(self._checking)
        except StopIteration:
            self._install(self._fetching)
        except (CorruptError, MalformedError, DiskFullError) as error:
            self._give_up(error, now)
        except FileNotFoundError as error:
            self._give_up(PositionLostError(f"{error.filename} is gone"), now)

    def _install(self, fetching: Fetching) -> None:
        # `step` has just made sure that the segment still exists.
        fetching.install()
        self._fetching = self._checking = None
        self._damaged.pop(fetching.name.sequence, None)
        self._copy.repairs += 1
        self._counts.set(repairs=self._copy.repairs)
        self._events.warning("replica.segment_repaired", segment=fetching.name.file)

    def _give_up(self, error: TailraceError, now: float) -> None:
        """Keep what there is, and ask again later."""
        fetching = self._fetching
        assert fetching is not None
        self._drop_fetched()
        damage = self._damaged.get(fetching.name.sequence)
        if damage is not None:
            damage.due_at = now + self._settings.reconnect_s
            reason = f"{damage.found}. It cannot be fetched again: {error}"
            if reason != damage.reason:
                damage.reason = reason
                self._events.error("replica.segment_not_repaired", code=error.code, reason=reason)
