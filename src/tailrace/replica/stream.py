"""Version 1 of the protocol: entries of the log, one frame each, for followers of other makes.

Such a follower acknowledges heartbeats and nothing else, so it is never part of a quorum. It says
only at the handshake how far it is; later, an answered heartbeat shows that it has received what
was sent before. The log is kept from there on. What has been removed is never skipped: the
follower's state is then POSITION_LOST.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

from tailrace.errors import (
    CorruptError,
    DivergedError,
    MalformedError,
    PositionLostError,
    ReplicaUnreachableError,
)
from tailrace.log.format import mark as marks
from tailrace.log.format.mark import Mark
from tailrace.log.format.segment import Placed, SegmentName, list_segments, walk
from tailrace.log.segments import Segments
from tailrace.log.term import base_of
from tailrace.replica import seed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tailrace.config.replication import Replication
    from tailrace.log.format.layout import SegmentHeader
    from tailrace.log.store import Store
    from tailrace.observe.figure import Recorder
    from tailrace.observe.replica import FollowerFigures
    from tailrace.position import Lsn
    from tailrace.replica.connection import Connection

_WAIT_S = 0.5
_EPOCH_MS = 946_684_800_000
"""2000-01-01 UTC, from which the times of the log count, in Unix milliseconds."""


class EntryStream:
    """Sends entries over one connection."""

    def __init__(
        self,
        store: Store,
        connection: Connection,
        settings: Replication,
        counts: Recorder[FollowerFigures],
        *,
        held: Callable[[Mark], None],
    ) -> None:
        self._store = store
        self._held = held
        self._sent: Mark | None = None
        """The end of the last whole transaction that was sent."""
        self._beats: deque[tuple[int, Mark | None]] = deque()
        """Heartbeats without an answer, and what was sent before each."""
        self._log = Segments(store)
        self._connection = connection
        self._settings = settings
        self._counts = counts
        header = self._log.header(self._log.segments()[-1])
        identity = header.identity
        self._topic = f"{identity.database}.{base_of(identity.slot, header.epoch)}"
        self._beat_at = time.monotonic()
        self._received_at = self._beat_at

    def send(self, after: Lsn, stopping: Callable[[], bool]) -> None:
        """Catch the follower up from an LSN, then send what comes. Raises PositionLostError."""
        self._connection.limit(self._settings.timeout_s)
        place = self._place_after(after)
        watch = self._store.watch(marks.NAME)
        self._counts.set(state="streaming", reason="", connected=True)
        while not stopping():
            end = self._log.durable_end()
            if place < end.place:
                place = self._send_upto(place, end, stopping)
            else:
                watch.wait(_WAIT_S)
            self._keep_alive()

    def _place_after(self, lsn: Lsn) -> tuple[int, int]:
        """Behind the last entry that the follower has, by the LSN that it ends at."""
        names = self._log.segments()
        end = self._log.durable_end()
        oldest = self._log.header(names[0])
        if lsn > end.end_lsn:
            raise DivergedError(
                f"the follower ends at {lsn}, after the leader's log at {end.end_lsn}",
                hint="Remove the follower's copy: it starts over.",
            )
        if 0 < lsn < oldest.base_end_lsn:
            raise PositionLostError(
                f"the follower ends at {lsn}, but the log begins after {oldest.base_end_lsn}",
                hint="Remove the follower's copy: it starts over. To keep the log for longer: "
                "replication.max_lag_bytes and max_lag_hours.",
            )
        start = names[0] if lsn == 0 else self._last_upto(names, lsn)
        self._hold(_base_mark(start, self._log.header(start)))
        place = (start.sequence, 0)
        for name, placed in self._entries(place, end):
            if placed.entry.end_lsn > lsn:
                break
            if placed.entry.ends:
                place = (name.sequence, placed.end)
                self._hold(_mark_after(name, placed))
        return place

    def _last_upto(self, names: list[SegmentName], lsn: Lsn) -> SegmentName:
        """The last segment that begins at or before an LSN."""
        return next(name for name in reversed(names) if self._log.header(name).base_end_lsn <= lsn)

    def _hold(self, mark: Mark) -> None:
        self._sent = mark
        self._held(mark)

    def _entries(
        self, place: tuple[int, int], end: Mark, *, bodies: bool = False
    ) -> Iterator[tuple[SegmentName, Placed]]:
        """Raises PositionLostError if retention was faster."""
        names = [name for name in list_segments(self._store) if name.sequence >= place[0]]
        if not names or names[0].sequence > place[0]:
            raise PositionLostError(f"retention removed segment {place[0]}")
        for name in names:
            if name.sequence > end.sequence:
                return
            start = place[1] if name.sequence == place[0] else 0
            start = max(start, self._log.first_entry(name))
            limit = end.offset if name.sequence == end.sequence else None
            try:
                for placed in walk(self._store, name, start, limit, bodies=bodies):
                    yield name, placed
            except MalformedError as error:
                raise CorruptError(f"{name.file}: {error}", hint=error.hint) from error
            except FileNotFoundError as error:
                raise PositionLostError(f"retention removed {name.file}") from error

    def _content(self, name: SegmentName, placed: Placed) -> bytes:
        try:
            return self._store.read(name.file, placed.start, placed.end - placed.start)
        except FileNotFoundError as error:
            raise PositionLostError(f"retention removed {name.file}") from error

    def _send_upto(
        self, place: tuple[int, int], end: Mark, stopping: Callable[[], bool]
    ) -> tuple[int, int]:
        for name, placed in self._entries(place, end, bodies=True):
            entry = placed.entry
            data = self._content(name, placed)
            frame = seed.EntryFrame(
                topic=self._topic,
                first_lsn=entry.first.lsn,
                changes=entry.changes,
                time_ms=_EPOCH_MS + entry.last_time // 1000,
                data=data,
            )
            self._connection.send_bytes(frame.encode())
            self._connection.send_bytes(data)
            self._counts.set(bytes=self._counts.figures.bytes + len(data))
            place = (name.sequence, placed.end)
            if entry.ends:
                self._sent = _mark_after(name, placed)
            self._keep_alive()
            if stopping():
                return place
        return end.place

    def _keep_alive(self) -> None:
        """Send a heartbeat when one is due; a follower that does not answer is gone."""
        now = time.monotonic()
        while self._connection.waiting():
            answer = self._connection.receive_bytes(seed.BEAT_ANSWER.size)
            self._note_answer(*seed.BEAT_ANSWER.unpack(answer))
            self._received_at = now
        if now - self._beat_at >= self._settings.heartbeat_s:
            time_ms = int(time.time() * 1000)
            self._connection.send_bytes(seed.heartbeat(time_ms))
            self._beats.append((time_ms, self._sent))
            self._beat_at = now
        if now - self._received_at > self._settings.timeout_s:
            raise ReplicaUnreachableError(
                f"{self._connection.peer} answered no heartbeat for {self._settings.timeout_s:g} s"
            )

    def _note_answer(self, time_ms: int) -> None:
        """The follower has received what was sent before this heartbeat."""
        if not any(beat == time_ms for beat, _ in self._beats):
            return
        while self._beats:
            beat, mark = self._beats.popleft()
            if beat == time_ms:
                if mark is not None:
                    self._held(mark)
                return


def _base_mark(name: SegmentName, header: SegmentHeader) -> Mark:
    return Mark(
        sequence=name.sequence, offset=0, position=header.base, end_lsn=header.base_end_lsn,
        time=header.base_time, epoch=header.epoch,
    )  # fmt: skip


def _mark_after(name: SegmentName, placed: Placed) -> Mark:
    entry = placed.entry
    return Mark(
        sequence=name.sequence, offset=placed.end, position=entry.last, end_lsn=entry.end_lsn,
        time=entry.last_time, epoch=entry.epoch,
    )  # fmt: skip
