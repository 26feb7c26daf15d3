"""A session: one connection's life from START_REPLICATION to its end.

One thread, one loop: receive, hand over to the flusher, acknowledge what is durable. The numbered
rules:

1. The flushed position told to PostgreSQL is the durable mark's `end_lsn`, and nothing else.
2. Status goes out at least every third of `wal_sender_timeout`, also inside a huge transaction and
   while the disk is behind.
3. When the disk is behind by `4 * flush_bytes`, the socket is not read; PostgreSQL waits.
4. A keepalive's position counts only when nothing received before it is still in our hands; it is
   made durable in the log before it is acknowledged, so the slot is never ahead of the log.
5. An end in the middle of a transaction leaves nothing of it: PostgreSQL sends it again.
"""

from __future__ import annotations

import select
import time
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import psycopg

from tailrace.capture.assemble import Assembler
from tailrace.errors import PostgresUnreachableError
from tailrace.log.format.entry import NO_OFFSETS, Entry, Kind
from tailrace.observe import failpoint
from tailrace.position import Lsn
from tailrace.wire.pgtime import PgTime
from tailrace.wire.replication import Keepalive, parse

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.capture.flusher import Flusher
    from tailrace.capture.replication import Replication
    from tailrace.log.appender import Appender
    from tailrace.observe.figure import Recorder
    from tailrace.observe.figures import CaptureFigures

_XLOG_DATA = ord("w")
_HEADER_BYTES = 25
_BUFFERS = 4
# The walsender sends every message by itself. Waking up for each would cost both sides more than
# the message: a nap, about a tenth of a millisecond with the timer's slack, lets dozens gather.
_NAP_BELOW_MESSAGES = 64
_NAP_S = 0.00005
_BURST_S = 0.002
_MIN_STATUS_GAP_S = 0.1
_DEFAULT_TIMEOUT_S = 60.0
_HOUSEKEEPING_S = 60.0
_ASK_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """When to flush, to report progress on an idle database, and to give up on a silent server."""

    flush_s: float
    flush_bytes: int
    progress_s: float
    sender_timeout_s: float

    @property
    def status_s(self) -> float:
        """Longest time between two status updates: a third of the server's patience, at most 10."""
        return min((self.sender_timeout_s or 30) / 3, 10)

    @property
    def silence_s(self) -> float:
        """How long a server may say nothing at all before the line counts as dead."""
        return self.sender_timeout_s or _DEFAULT_TIMEOUT_S


class Session:
    """Streams into a flusher until stopped, until `until` is durable, or until an error."""

    def __init__(
        self,
        replication: Replication,
        appender: Appender,
        flusher: Flusher,
        pace: Pace,
        counts: Recorder[CaptureFigures],
        *,
        housekeeping: Callable[[], None],
        awaited: Callable[[], Lsn] = lambda: Lsn(0),
    ) -> None:
        self._replication = replication
        self._appender = appender
        self._flusher = flusher
        self._pace = pace
        self._limit = _BUFFERS * pace.flush_bytes
        self._counts = counts
        self._housekeeping = housekeeping
        self._awaited = awaited
        self._assembler = Assembler(appender.mark, spill_bytes=pace.flush_bytes)
        self._buffer = bytearray()
        self._ends = array("I")
        now = time.monotonic()
        self._pending_since = 0.0
        self._heard_at = self._status_at = self._progress_at = now
        self._swept_at = now - _HOUSEKEEPING_S
        self._asked_at = now - _ASK_S
        self._acknowledged = Lsn(0)
        self._server_end = appender.mark.end_lsn
        self._reply_requested = True
        self._probed = False
        self._sound = 0
        replication.on_refusal = self._mark_refusal

    def run(self, stopping: Callable[[], bool], *, until: Lsn | None = None) -> None:
        """Stream. Returns in order, with everything whole durable and acknowledged, or raises."""
        self._counts.add(sessions=1)
        self._counts.set(connected=True)
        try:
            self._stream(stopping, until)
        finally:
            self._counts.set(connected=False)

    def _stream(self, stopping: Callable[[], bool], until: Lsn | None) -> None:
        disk, line = select.poll(), select.poll()
        disk.register(self._flusher.wake_fd, select.POLLIN)
        line.register(self._flusher.wake_fd, select.POLLIN)
        line.register(self._replication.socket, select.POLLIN)
        while not stopping():
            reading = len(self._buffer) < self._limit
            received = reading and self._receive()
            now = time.monotonic()
            self._note_reception(now, received=received, reading=reading)
            self._flusher.check()
            self._hand_over(now)
            self._make_progress(now, until)
            self._report_status(now)
            if until is not None and self._flusher.idle and self._appender.mark.end_lsn >= until:
                self._sweep(now)
                break
            self._sweep(now)
            if not received:
                (line if reading else disk).poll(self._patience_ms(now))
                self._flusher.acknowledge_wake()
        self._close()

    def _receive(self) -> bool:
        """Read until the line is quiet, an entry is full, or it is time to look at other things."""
        received = False
        pause = time.monotonic() + _BURST_S
        while True:
            self._replication.consume_input()
            count = self._drain()
            if not count:
                return received
            received = True
            if len(self._buffer) >= self._pace.flush_bytes or time.monotonic() > pause:
                return True
            if count < _NAP_BELOW_MESSAGES:
                time.sleep(_NAP_S)

    def _drain(self) -> int:
        """Take all messages libpq holds. The one loop that runs per message: kept bare."""
        get, buffer, ends = self._replication.get_copy_data, self._buffer, self._ends
        before, others, size, total, limit = len(ends), 0, 0, len(buffer), self._limit
        try:
            while total < limit:
                size, data = get(1)
                if size > _HEADER_BYTES and data[0] == _XLOG_DATA:
                    buffer += data[_HEADER_BYTES:]
                    total += size - _HEADER_BYTES
                    ends.append(total)
                elif size > 0:
                    others += 1
                    self._keepalive(data)
                else:
                    break
        except psycopg.Error as error:
            raise self._replication.broken(error) from error
        if self._replication.refusal is not None:
            self._save(self._sound)
            raise self._replication.refusal
        if size < 0:
            self._save(len(ends))
            raise self._replication.stream_ended()
        count = len(ends) - before + others
        if count:
            failpoint.hit("capture.received")
        return count

    def _mark_refusal(self) -> None:
        self._sound = len(self._ends)

    def _keepalive(self, data: memoryview) -> None:
        frame = parse(data)
        if not isinstance(frame, Keepalive):
            raise PostgresUnreachableError(
                f"PostgreSQL sent {type(frame).__name__} without content"
            )
        self._reply_requested |= frame.reply_requested
        if not self._ends and self._assembler.between_transactions:
            self._server_end = max(self._server_end, frame.end_lsn)

    def _note_reception(self, now: float, *, received: bool, reading: bool) -> None:
        if received or not reading:
            self._heard_at, self._probed = now, False
            if self._ends and not self._pending_since:
                self._pending_since = now
        elif now - self._heard_at > self._pace.silence_s:
            raise PostgresUnreachableError(f"PostgreSQL was silent for {self._pace.silence_s:g} s")

    def _hand_over(self, now: float, *, everything: bool = False) -> None:
        """Give what is due to the flusher, if it is free."""
        if not self._ends or not self._flusher.idle:
            return
        due = now - self._pending_since >= self._pace.flush_s
        if not due and len(self._buffer) < self._pace.flush_bytes and not everything:
            return
        failpoint.hit("capture.before-append")
        ends = np.frombuffer(self._ends, np.uint32)
        entries, covered = self._assembler.take(self._buffer, ends)
        consumed = int(ends[covered - 1]) if covered else 0
        self._buffer = bytearray(memoryview(self._buffer)[consumed:])
        self._ends = array("I", (ends[covered:] - np.uint32(consumed)).tobytes())
        self._pending_since = now if self._ends else 0.0
        if entries:
            self._count(entries)
            self._flusher.submit(entries)

    def _count(self, entries: list[Entry]) -> None:
        self._counts.add(
            entries=len(entries),
            messages=sum(len(entry.offsets) - 1 for entry in entries),
            changes=sum(entry.changes for entry in entries),
            transactions=sum(entry.transactions for entry in entries),
            bytes=sum(len(entry.body) for entry in entries),
        )
        times = [entry.last_time for entry in entries if entry.transactions]
        if times:
            self._counts.set(last_committed_at=PgTime(times[-1]).to_datetime())

    def _make_progress(self, now: float, until: Lsn | None) -> None:
        """Rule 4: move along with WAL that holds nothing for us."""
        mark = self._appender.mark
        if self._server_end <= mark.end_lsn or not self._flusher.idle or not self._appender.whole:
            return
        if self._assembler.end_lsn > mark.end_lsn:
            return
        wanted = until is not None and self._server_end >= until
        if now - self._asked_at >= _ASK_S:
            self._asked_at = now
            wanted = wanted or mark.end_lsn < self._awaited() <= self._server_end
        if wanted or self._reply_requested or now - self._progress_at >= self._pace.progress_s:
            self._progress_at = now
            self._flusher.submit([_progress(self._appender, self._server_end)])
            self._assembler.end_lsn = max(self._assembler.end_lsn, self._server_end)

    def _report_status(self, now: float) -> None:
        """Rules 1 and 2."""
        flushed = self._appender.mark.end_lsn
        gap = now - self._status_at
        news = flushed > self._acknowledged and gap >= _MIN_STATUS_GAP_S
        owed = self._reply_requested and (self._flusher.idle or gap >= _MIN_STATUS_GAP_S)
        probe = not self._probed and now - self._heard_at > self._pace.silence_s / 2
        if news or owed or probe or gap >= self._pace.status_s:
            self._send_status(flushed, now, probe=probe)

    def _send_status(self, flushed: Lsn, now: float, *, probe: bool = False) -> None:
        failpoint.hit("capture.before-status")
        written = max(self._assembler.end_lsn, self._server_end)
        self._replication.send_status(written=written, flushed=flushed, reply_requested=probe)
        failpoint.hit("capture.after-status")
        self._acknowledged = max(self._acknowledged, flushed)
        self._counts.set(acknowledged=self._acknowledged)
        self._status_at = now
        self._reply_requested = False
        self._probed |= probe

    def _sweep(self, now: float) -> None:
        if self._flusher.idle and now - self._swept_at >= _HOUSEKEEPING_S:
            self._swept_at = now
            self._housekeeping()

    def _patience_ms(self, now: float) -> float:
        """How long to wait for something to happen."""
        until = self._status_at + self._pace.status_s
        if self._appender.mark.end_lsn > self._acknowledged:
            until = min(until, self._status_at + _MIN_STATUS_GAP_S)
        if self._ends and self._flusher.idle:
            until = min(until, self._pending_since + self._pace.flush_s)
        return max(min(until - now, 0.25) * 1000, 1)

    def _close(self) -> None:
        """Flush what is whole, acknowledge it, and part in order."""
        self._save(len(self._ends))
        self._send_status(self._appender.mark.end_lsn, time.monotonic())
        self._replication.finish()

    def _save(self, messages: int) -> None:
        """Make durable what is whole among the first `messages` at hand; drop what follows."""
        del self._ends[messages:]
        del self._buffer[self._ends[-1] if self._ends else 0 :]
        if self._flusher.wait(3):
            self._hand_over(time.monotonic(), everything=True)
            self._flusher.wait(3)


def _progress(appender: Appender, end_lsn: Lsn) -> Entry:
    mark = appender.mark
    return Entry(
        kind=Kind.PROGRESS,
        first=mark.position,
        last=mark.position,
        end_lsn=end_lsn,
        first_time=mark.time,
        last_time=mark.time,
        offsets=NO_OFFSETS,
        body=b"",
    )
