"""Version 1 of the protocol: entries of the log, one frame each, for followers of other makes.

Such a follower acknowledges heartbeats and nothing else, so it is never part of a quorum. It says
only at the handshake how far it is.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tailrace.errors import CorruptError, DivergedError, MalformedError, ReplicaUnreachableError
from tailrace.log.format import mark as marks
from tailrace.log.format.segment import Placed, SegmentName, list_segments, walk
from tailrace.log.segments import Segments
from tailrace.log.term import base_of
from tailrace.replica import seed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tailrace.config.replication import Replication
    from tailrace.log.format.mark import Mark
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
    ) -> None:
        self._store = store
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
        """Catch the follower up from an LSN, then send what comes."""
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
        names = list_segments(self._store)
        end = self._log.durable_end()
        if lsn == 0:
            return names[0].sequence, 0
        if lsn > end.end_lsn:
            raise DivergedError(
                f"the follower ends at {lsn}, after the leader's log at {end.end_lsn}",
                hint="Remove the follower's copy: it starts over.",
            )
        start = max((name for name in names if name.base_lsn <= lsn), default=names[0])
        place = (start.sequence, 0)
        for name, placed in self._entries((start.sequence, 0), end):
            if placed.entry.end_lsn > lsn:
                break
            if placed.entry.ends:
                place = (name.sequence, placed.end)
        return place

    def _entries(
        self, place: tuple[int, int], end: Mark, *, bodies: bool = False
    ) -> Iterator[tuple[SegmentName, Placed]]:
        for name in list_segments(self._store):
            if not place[0] <= name.sequence <= end.sequence:
                continue
            start = place[1] if name.sequence == place[0] else 0
            start = max(start, self._log.first_entry(name))
            limit = end.offset if name.sequence == end.sequence else None
            try:
                for placed in walk(self._store, name, start, limit, bodies=bodies):
                    yield name, placed
            except MalformedError as error:
                raise CorruptError(f"{name.file}: {error}", hint=error.hint) from error

    def _send_upto(
        self, place: tuple[int, int], end: Mark, stopping: Callable[[], bool]
    ) -> tuple[int, int]:
        for name, placed in self._entries(place, end, bodies=True):
            entry = placed.entry
            data = self._store.read(name.file, placed.start, placed.end - placed.start)
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
            self._keep_alive()
            if stopping():
                return place
        return end.place

    def _keep_alive(self) -> None:
        """Send a heartbeat when one is due; a follower that does not answer is gone."""
        now = time.monotonic()
        while self._connection.waiting():
            self._connection.receive_bytes(seed.BEAT_ANSWER.size)
            self._received_at = now
        if now - self._beat_at >= self._settings.heartbeat_s:
            self._connection.send_bytes(seed.heartbeat(int(time.time() * 1000)))
            self._beat_at = now
        if now - self._received_at > self._settings.timeout_s:
            raise ReplicaUnreachableError(
                f"{self._connection.peer} answered no heartbeat for {self._settings.timeout_s:g} s"
            )
