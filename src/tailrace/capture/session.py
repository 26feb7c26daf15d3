"""A session: one replication connection, from START_REPLICATION to its end.

One thread, one loop: receive, submit to the flusher, acknowledge what is durable. The rules:

1. The flushed position sent to PostgreSQL is the `end_lsn` of the durable mark, or less while
   followers of the log have to catch up (`tailrace.capture.gate`), and nothing else.
2. The session sends a status update at least every third of `wal_sender_timeout`, also inside a
   huge transaction and while the disk is slow.
3. While `4 * flush_bytes` wait for the disk, the session does not read the socket; PostgreSQL
   waits.
4. The position of a keepalive counts only when no message received before it is still in memory.
   The session writes it to the log durably before it acknowledges it, so that the slot is never
   ahead of the log.
5. A session that ends inside a transaction leaves no part of it visible: PostgreSQL sends the
   transaction again.
"""

from __future__ import annotations

import select
import time
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import psycopg

from tailrace.capture.arrivals import Arrivals
from tailrace.capture.assemble import Assembler
from tailrace.capture.load import Load
from tailrace.errors import PostgresUnreachableError
from tailrace.log.format.entry import NO_OFFSETS, Entry, Kind
from tailrace.observe import failpoint
from tailrace.position import Lsn
from tailrace.wire.pgtime import PgTime
from tailrace.wire.replication import Keepalive, parse

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.capture.flusher import Flusher
    from tailrace.capture.gate import Gate
    from tailrace.capture.replication import Replication
    from tailrace.log.appender import Appender
    from tailrace.observe.figure import Recorder
    from tailrace.observe.figures import CaptureFigures

_XLOG_DATA = ord("w")
_COMMIT = ord("C")
_HEADER_BYTES = 25
_BUFFERS = 4
# The walsender sends every message by itself. To wake up for each costs both sides more than the
# message itself. A pause of about 0.1 ms, timer slack included, lets dozens arrive.
_PAUSE_BELOW_MESSAGES = 64
_PAUSE_S = 0.00005
_BURST_S = 0.002
_MIN_STATUS_GAP_S = 0.1
_DEFAULT_TIMEOUT_S = 60.0
_HOUSEKEEPING_S = 60.0
_SETTLE_S = 1.0
"""As long as slots of older terms can be dropped, and are not."""
_AWAITED_CHECK_S = 0.1
_SAVE_TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """When to flush, to record progress of an idle database, and to give up on a silent server."""

    flush_s: float
    flush_bytes: int
    progress_s: float
    sender_timeout_s: float

    @property
    def status_s(self) -> float:
        """Max seconds between two status updates: a third of wal_sender_timeout, at most 10."""
        return min((self.sender_timeout_s or 30) / 3, 10)

    @property
    def silence_s(self) -> float:
        """How long the server may send nothing before the session counts the connection as dead."""
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
        gate: Gate,
        arrivals: Arrivals | None = None,
        awaited: Callable[[], Lsn] = lambda: Lsn(0),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._replication = replication
        self._gate = gate
        self._arrivals = arrivals or Arrivals()
        self._appender = appender
        self._flusher = flusher
        self._pace = pace
        self._limit = _BUFFERS * pace.flush_bytes
        self._counts = counts
        self._housekeeping = housekeeping
        self._awaited = awaited
        self._clock = clock
        self._assembler = Assembler(appender.mark, spill_bytes=pace.flush_bytes)
        self._buffer = bytearray()
        self._ends = array("I")
        self._received_bytes = 0
        now = clock()
        self._load = Load(now)
        self._pending_since = 0.0
        self._received_at = self._status_at = self._progress_at = now
        self._housekeeping_at = now - _HOUSEKEEPING_S
        self._awaited_checked_at = now - _AWAITED_CHECK_S
        self._acknowledged = Lsn(0)
        self._server_end = appender.mark.end_lsn
        self._reply_requested = True
        self._probed = False
        self._messages_before_refusal = 0
        replication.on_refusal = self._mark_refusal

    def run(self, stopping: Callable[[], bool], *, until: Lsn | None = None) -> None:
        """Stream. Returns with every whole transaction durable and acknowledged, or raises."""
        self._counts.add(sessions=1)
        self._counts.set(connected=True)
        try:
            self._stream(stopping, until)
        finally:
            self._count_received()
            self._counts.set(connected=False)

    def _stream(self, stopping: Callable[[], bool], until: Lsn | None) -> None:
        disk, line = select.poll(), select.poll()
        disk.register(self._flusher.wake_fd, select.POLLIN)
        line.register(self._flusher.wake_fd, select.POLLIN)
        line.register(self._replication.socket, select.POLLIN)
        if self._gate.wake_fd is not None:
            disk.register(self._gate.wake_fd, select.POLLIN)
            line.register(self._gate.wake_fd, select.POLLIN)
        while not stopping():
            reading = len(self._buffer) < self._limit
            received = reading and self._receive()
            now = self._clock()
            self._note_reception(now, received=received, reading=reading)
            self._flusher.check()
            self._submit(now, paused=not received and self._ends_with_commit())
            self._make_progress(now, until)
            self._gate.refresh()
            self._report_status(now)
            self._keep_house(now)
            if until is not None and self._flusher.idle and self._appender.mark.end_lsn >= until:
                break
            if not received:
                (line if reading else disk).poll(self._poll_timeout_ms(now))
                self._flusher.acknowledge_wake()
        self._close()

    def _receive(self) -> bool:
        """Read until the socket is empty, an entry is full, or the burst has lasted long enough."""
        received = False
        burst_end = self._clock() + _BURST_S
        while True:
            self._replication.consume_input()
            count = self._drain()
            if not count:
                return received
            received = True
            if len(self._buffer) >= self._pace.flush_bytes or self._clock() > burst_end:
                return True
            if count < _PAUSE_BELOW_MESSAGES:
                time.sleep(_PAUSE_S)

    def _drain(self) -> int:
        """Take all messages that libpq has buffered. Returns their number.

        The only loop of capture that runs per message, so it uses local names and no calls but
        libpq's. Every frame is `w` (XLogData: 25 bytes of header, one pgoutput message) or a
        keepalive.
        """
        get, buffer, ends = self._replication.get_copy_data, self._buffer, self._ends
        before, had, limit = len(ends), len(buffer), self._limit
        others, size, total = 0, 0, had
        try:
            while total < limit:
                size, data = get(1)
                if size > _HEADER_BYTES and data[0] == _XLOG_DATA:
                    buffer += data[_HEADER_BYTES:]
                    total += size - _HEADER_BYTES
                    ends.append(total)
                elif size > 0:
                    others += 1
                    self._received_bytes += size
                    self._keepalive(data)
                else:
                    break
        except psycopg.Error as error:
            raise self._replication.broken(error) from error
        if self._replication.refusal is not None:
            self._save(self._messages_before_refusal)
            raise self._replication.refusal
        if size < 0:
            self._save(len(ends))
            raise self._replication.stream_ended()
        messages = len(ends) - before
        self._received_bytes += total - had + messages * _HEADER_BYTES
        count = messages + others
        if count:
            failpoint.hit("capture.received")
        return count

    def _mark_refusal(self) -> None:
        self._messages_before_refusal = len(self._ends)

    def _keepalive(self, data: memoryview) -> None:
        frame = parse(data)
        if not isinstance(frame, Keepalive):
            raise PostgresUnreachableError(f"PostgreSQL sent an empty {type(frame).__name__} frame")
        self._reply_requested |= frame.reply_requested
        if not self._ends and self._assembler.between_transactions:
            self._server_end = max(self._server_end, frame.end_lsn)

    def _note_reception(self, now: float, *, received: bool, reading: bool) -> None:
        if received or not reading:
            self._received_at, self._probed = now, False
            if self._ends and not self._pending_since:
                self._pending_since = now
        elif now - self._received_at > self._pace.silence_s:
            raise PostgresUnreachableError(
                f"PostgreSQL sent nothing for {self._pace.silence_s:g} s"
            )

    def _submit(self, now: float, *, paused: bool) -> None:
        """Submit what is due to the flusher, if it is idle.

        A transaction is due when the stream pauses: what comes during its fsync shares the next
        one. A fast stream is collected for some milliseconds. A stream without pauses is flushed
        every `flush_s`.
        """
        if not self._ends or not self._flusher.idle:
            return
        due = now >= self._due_at(now, paused=paused)
        if not due and len(self._buffer) < self._pace.flush_bytes:
            return
        failpoint.hit("capture.before-append")
        self._load.note(len(self._buffer), now)
        ends = np.frombuffer(self._ends, np.uint32)
        entries, covered = self._assembler.take(self._buffer, ends)
        consumed = int(ends[covered - 1]) if covered else 0
        self._buffer = bytearray(memoryview(self._buffer)[consumed:])
        self._ends = array("I", (ends[covered:] - np.uint32(consumed)).tobytes())
        self._pending_since = now if self._ends else 0.0
        if entries:
            self._count(entries)
            self._arrivals.submitted(self._assembler.pop_commit_times())
            self._flusher.submit(entries)

    def _due_at(self, now: float, *, paused: bool) -> float:
        """When the buffer is flushed, whatever its size."""
        wait_s = self._load.collect_s(now) if paused else self._pace.flush_s
        return self._pending_since + min(wait_s, self._pace.flush_s)

    def _ends_with_commit(self) -> bool:
        if not self._ends:
            return False
        last = self._ends[-2] if len(self._ends) > 1 else 0
        return self._buffer[last] == _COMMIT

    def _count(self, entries: list[Entry]) -> None:
        times = [entry.last_time for entry in entries if entry.transactions]
        if times:
            self._counts.set(last_committed_at=PgTime(times[-1]).to_datetime())
        self._counts.add(
            entries=len(entries),
            messages=sum(len(entry.offsets) - 1 for entry in entries),
            changes=sum(entry.changes for entry in entries),
            transactions=sum(entry.transactions for entry in entries),
            bytes=sum(len(entry.body) for entry in entries),
        )

    def _count_received(self) -> None:
        """Count what needs no count per flush."""
        received, self._received_bytes = self._received_bytes, 0
        self._counts.add(received_bytes=received, ingestion_latency=self._arrivals.latencies())

    def _make_progress(self, now: float, until: Lsn | None) -> None:
        """Rule 4: record progress through WAL that holds no published change.

        Due when the caller of `run` or a file of `tailrace.log.awaited` waits for this position,
        when the server requests a reply, and every `progress_s`.
        """
        mark = self._appender.mark
        if self._server_end <= mark.end_lsn or not self._flusher.idle or not self._appender.whole:
            return
        if self._assembler.end_lsn > mark.end_lsn:
            return
        due = until is not None and self._server_end >= until
        if now - self._awaited_checked_at >= _AWAITED_CHECK_S:
            self._awaited_checked_at = now
            due = due or mark.end_lsn < self._awaited() <= self._server_end
        if due or self._reply_requested or now - self._progress_at >= self._pace.progress_s:
            self._progress_at = now
            self._flusher.submit([_progress(self._appender, self._server_end)])
            self._assembler.end_lsn = max(self._assembler.end_lsn, self._server_end)

    def _report_status(self, now: float) -> None:
        """Rules 1 and 2: send a status update when one of these holds.

        advanced   more may be acknowledged, and the last update is 0.1 s old
        requested  the server requested a reply; a busy disk delays it by at most 0.1 s
        probe      the server sent nothing for half of `silence_s`: request a reply
        overdue    the last update is `status_s` old
        """
        flushed = self._gate.limit(self._appender.mark)
        gap_s = now - self._status_at
        advanced = flushed > self._acknowledged and gap_s >= _MIN_STATUS_GAP_S
        requested = self._reply_requested and (self._flusher.idle or gap_s >= _MIN_STATUS_GAP_S)
        probe = not self._probed and now - self._received_at > self._pace.silence_s / 2
        overdue = gap_s >= self._pace.status_s
        if advanced or requested or probe or overdue:
            self._send_status(flushed, now, probe=probe)

    def _send_status(self, flushed: Lsn, now: float, *, probe: bool = False) -> None:
        failpoint.hit("capture.before-status")
        written = max(self._assembler.end_lsn, self._server_end)
        self._replication.send_status(written=written, flushed=flushed, reply_requested=probe)
        failpoint.hit("capture.after-status")
        self._acknowledged = max(self._acknowledged, flushed)
        self._counts.set(acknowledged=self._acknowledged)
        self._count_received()
        self._status_at = now
        self._reply_requested = False
        self._probed |= probe

    def _keep_house(self, now: float) -> None:
        every_s = _SETTLE_S if self._gate.due else _HOUSEKEEPING_S
        if self._flusher.idle and now - self._housekeeping_at >= every_s:
            self._housekeeping_at = now
            self._housekeeping()

    def _poll_timeout_ms(self, now: float) -> float:
        """How long to wait for the socket or the disk, before the next duty of the loop is due."""
        until = self._status_at + self._pace.status_s
        if self._gate.limit(self._appender.mark) > self._acknowledged:
            until = min(until, self._status_at + _MIN_STATUS_GAP_S)
        if self._ends and self._flusher.idle:
            until = min(until, self._due_at(now, paused=self._ends_with_commit()))
        return max(min(until - now, 0.25) * 1000, 1)

    def _close(self) -> None:
        """Flush whole transactions, acknowledge them and end the stream."""
        self._save(len(self._ends))
        self._gate.refresh()
        self._send_status(self._gate.limit(self._appender.mark), self._clock())
        self._replication.finish()

    def _save(self, messages: int) -> None:
        """Make whole transactions among the first `messages` durable; drop the rest."""
        del self._ends[messages:]
        del self._buffer[self._ends[-1] if self._ends else 0 :]
        if self._flusher.wait(_SAVE_TIMEOUT_S):
            self._submit(self._clock(), paused=True)
            self._flusher.wait(_SAVE_TIMEOUT_S)


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
