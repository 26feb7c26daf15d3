"""The session's numbered rules, against a scripted server and a disk that can be made to hang."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING, cast

import pytest

from tailrace.capture.arrivals import Arrivals
from tailrace.capture.flusher import Flusher
from tailrace.capture.gate import Gate
from tailrace.capture.load import Load
from tailrace.capture.session import Pace, Session
from tailrace.errors import DiskFullError, PostgresUnreachableError
from tailrace.log.appender import Appender, Layout
from tailrace.log.changes import read_changes
from tailrace.log.format.layout import Identity
from tailrace.log.lease import Lease
from tailrace.log.reader import Earliest, Log
from tailrace.log.store import LocalStore
from tailrace.observe.figure import Recorder
from tailrace.observe.figures import CaptureFigures
from tailrace.position import Lsn
from tailrace.schema import Column, Relation, ReplicaIdentity
from tailrace.wire import pgoutput, replication
from tailrace.wire.pgoutput import PgTime
from tests.waiting import LONG_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tailrace.capture.replication import Replication

RELATION = Relation(
    oid=7,
    namespace="public",
    name="t",
    replica_identity=ReplicaIdentity.DEFAULT,
    columns=(Column(name="v", type_oid=25),),
)
START = Lsn(1000)


def xlog(message: pgoutput.AnyMessage) -> bytes:
    return replication.write(
        replication.XLogData(
            start_lsn=Lsn(0), end_lsn=Lsn(0), sent_at=PgTime(0), data=pgoutput.write(message)
        )
    )


def keepalive(lsn: int, *, reply: bool = False) -> bytes:
    return replication.write(
        replication.Keepalive(end_lsn=Lsn(lsn), sent_at=PgTime(0), reply_requested=reply)
    )


def transaction(lsn: int, value: bytes = b"x") -> list[bytes]:
    begin = pgoutput.Begin(final_lsn=Lsn(lsn), committed_at=PgTime(lsn), xid=lsn)
    commit = pgoutput.Commit(commit_lsn=Lsn(lsn), end_lsn=Lsn(lsn + 5), committed_at=PgTime(lsn))
    insert = pgoutput.Insert(oid=7, new=(value,))
    return [xlog(message) for message in (begin, RELATION, insert, commit)]


class Server:
    """Plays the walsender: hands out frames, notes every status update."""

    def __init__(self) -> None:
        self._frames: list[bytes] = []
        self._near, self._far = socket.socketpair()
        self.handed_out = 0
        self.statuses: list[tuple[float, Lsn]] = []
        self.refusal = None
        self.on_refusal: Callable[[], None] | None = None
        self.finished = False

    @property
    def socket(self) -> int:
        return self._near.fileno()

    def say(self, *frames: bytes) -> None:
        self._frames += frames
        self._far.send(b".")

    def consume_input(self) -> None:
        self._near.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            self._near.recv(1 << 16)

    def get_copy_data(self, _nowait: int) -> tuple[int, memoryview]:
        if self.handed_out >= len(self._frames):
            return 0, memoryview(b"")
        frame = self._frames[self.handed_out]
        self.handed_out += 1
        return len(frame), memoryview(frame)

    def send_status(self, *, written: Lsn, flushed: Lsn, reply_requested: bool = False) -> None:
        self.statuses.append((time.monotonic(), flushed))

    @property
    def flushed(self) -> Lsn:
        return self.statuses[-1][1] if self.statuses else Lsn(0)

    def finish(self) -> None:
        self.finished = True

    def close(self) -> None:
        self._near.close()
        self._far.close()


class Disk(LocalStore):
    """A store whose syncs wait for `release` and may fail."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, create=True)
        self.release = threading.Event()
        self.release.set()
        self.full = False

    def append_to(self, name: str):  # type: ignore[no-untyped-def]
        file = super().append_to(name)
        sync = file.sync

        def slow() -> None:
            assert self.release.wait(LONG_S)
            if self.full:
                raise DiskFullError("no space")
            sync()

        file.sync = slow  # type: ignore[method-assign]
        return file


class SessionRig:
    """A session between a scripted server and a real log."""

    def __init__(
        self,
        folder: Path,
        *,
        sender_timeout_s: float = 3600,
        pace_type: type[Pace] = Pace,
        progress_s: float = 60,
        flush_s: float = 0.001,
    ) -> None:
        self.server = Server()
        self.disk = Disk(folder)
        self.lease = Lease.acquire(self.disk)
        identity = Identity(
            system_identifier="1", timeline=1, database="d", slot="s", publication="p"
        )
        self.appender = Appender.create(
            self.disk, self.lease, Layout(), identity=identity, start_lsn=START
        )
        arrivals = Arrivals()
        self.flusher = Flusher(self.appender, arrivals.note)
        pace = pace_type(
            flush_s=flush_s,
            flush_bytes=2000,
            progress_s=progress_s,
            sender_timeout_s=sender_timeout_s,
        )
        self.counts = Recorder(CaptureFigures())
        self.session = Session(
            cast("Replication", self.server),
            self.appender,
            self.flusher,
            pace,
            self.counts,
            housekeeping=lambda: None,
            gate=Gate(self.disk),
            arrivals=arrivals,
        )
        self.stop = threading.Event()
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.session.run(self.stop.is_set)
        except BaseException as error:
            self.error = error

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LONG_S
        while not condition():
            assert time.monotonic() < deadline
            assert self.error is None or condition(), self.error
            time.sleep(0.002)

    def end(self) -> None:
        self.stop.set()
        self.join()

    def join(self) -> None:
        self._thread.join(LONG_S)
        assert not self._thread.is_alive()

    def values(self) -> list[object]:
        log = Log(self.disk)
        return [c.after[0] for c in read_changes(log, log.resolve(Earliest())) if c.after]

    def close(self) -> None:
        self.disk.release.set()
        self.end()
        self.flusher.close()
        self.appender.close()
        self.lease.release()
        self.server.close()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[SessionRig]:
    made = SessionRig(tmp_path)
    yield made
    made.close()


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[SessionRig]:
    """A server whose `wal_sender_timeout` is 300 ms."""
    made = SessionRig(tmp_path, sender_timeout_s=0.3)
    yield made
    made.close()


class Eager(Pace):
    """Sends a status often, and does not mind a silent server."""

    @property
    def status_s(self) -> float:
        return 0.1


@pytest.fixture
def eager(tmp_path: Path) -> Iterator[SessionRig]:
    made = SessionRig(tmp_path, pace_type=Eager)
    yield made
    made.close()


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[SessionRig]:
    """A log that may be flushed every hour."""
    made = SessionRig(tmp_path, flush_s=3600)
    yield made
    made.close()


def test_a_transaction_is_flushed_where_the_stream_pauses(patient: SessionRig) -> None:
    """`flush_s` is for a stream without pauses."""
    patient.server.say(*transaction(2000))
    patient.until(lambda: patient.server.flushed >= 2005)
    patient.server.say(*transaction(3000), *transaction(4000, b"y")[:3])
    patient.until(lambda: patient.server.handed_out == 11)
    patient.server.say(*transaction(4000, b"y")[3:])
    patient.until(lambda: patient.server.flushed >= 4005)
    assert patient.values() == [b"x", b"x", b"y"]


def test_transactions_of_a_fast_stream_are_collected(
    patient: SessionRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Load, "collect_s", lambda *_: 3600.0)
    patient.server.say(*transaction(2000), *transaction(3000))
    patient.until(lambda: patient.server.handed_out == 8)
    patient.server.say(*transaction(4000), keepalive(5000, reply=True))
    patient.until(lambda: len(patient.server.statuses) >= 2)
    assert patient.server.flushed == START
    monkeypatch.undo()
    patient.until(lambda: patient.server.flushed >= 4005)
    assert patient.counts.figures.entries == 1


def test_only_durable_positions_are_acknowledged(rig: SessionRig) -> None:
    rig.disk.release.clear()
    rig.server.say(*transaction(2000), keepalive(3000, reply=True))
    rig.until(lambda: rig.server.handed_out == 5 and len(rig.server.statuses) >= 1)
    rig.server.say(keepalive(3001, reply=True))
    rig.until(lambda: len(rig.server.statuses) >= 2)
    assert {flushed for _, flushed in rig.server.statuses} == {START}
    rig.disk.release.set()
    rig.until(lambda: rig.server.flushed >= 2005)
    assert rig.values() == [b"x"]


def test_the_last_commit_time_is_counted(rig: SessionRig) -> None:
    assert rig.counts.figures.last_committed_at is None
    rig.server.say(*transaction(2000), *transaction(3000))
    rig.until(lambda: rig.counts.figures.acknowledged == 3005)
    figures = rig.counts.figures
    assert figures.last_committed_at == PgTime(3000).to_datetime()
    assert (figures.transactions, figures.changes, figures.messages) == (2, 2, 8)
    assert (figures.sessions, figures.connected, figures.acknowledged) == (1, True, Lsn(3005))


def test_what_is_received_is_counted_in_bytes(rig: SessionRig) -> None:
    """GIVEN frames of changes and keepalives THEN all their bytes count, and each transaction has
    the latency of its own commit."""
    frames = [*transaction(2000), keepalive(2500), *transaction(3000, b"y" * 500)]
    rig.server.say(*frames)
    rig.until(lambda: rig.counts.figures.acknowledged == 3005)
    rig.end()
    figures = rig.counts.figures
    assert figures.received_bytes == sum(map(len, frames))
    assert figures.bytes < figures.received_bytes
    assert figures.ingestion_latency.count == figures.transactions == 2


def test_a_transaction_that_is_not_whole_has_no_commit_time(rig: SessionRig) -> None:
    rig.server.say(*transaction(2000), *transaction(3000, b"y" * 3000)[:3])
    rig.until(lambda: rig.counts.figures.entries == 2)
    assert rig.counts.figures.last_committed_at == PgTime(2000).to_datetime()


def test_status_updates_continue_while_the_disk_hangs(eager: SessionRig) -> None:
    eager.disk.release.clear()
    eager.server.say(*transaction(2000))
    eager.until(lambda: len(eager.server.statuses) >= 6)
    assert {flushed for _, flushed in eager.server.statuses} == {START}
    pace = Pace(flush_s=1, flush_bytes=1, progress_s=1, sender_timeout_s=0.3)
    assert pace.status_s == pytest.approx(0.1)


def test_the_socket_is_not_read_while_too_much_waits_for_the_disk(rig: SessionRig) -> None:
    rig.disk.release.clear()
    frames = [frame for lsn in range(2000, 62000, 10) for frame in transaction(lsn, b"y" * 50)]
    rig.server.say(*frames)
    rig.until(lambda: rig.server.handed_out > 100)
    time.sleep(0.1)
    assert rig.server.handed_out < len(frames)
    rig.disk.release.set()
    rig.until(lambda: rig.server.flushed == 61995)
    assert len(rig.values()) == 6000


def test_keepalive_is_durable_before_it_is_acknowledged(rig: SessionRig) -> None:
    rig.server.say(keepalive(5000, reply=True))
    rig.until(lambda: rig.server.flushed == 5000)
    assert Log(rig.disk).end().end_lsn == 5000


def test_a_keepalive_inside_a_transaction_is_not_progress(rig: SessionRig) -> None:
    frames = transaction(2000)
    rig.server.say(*frames[:2], keepalive(5000, reply=True))
    rig.until(lambda: len(rig.server.statuses) >= 1)
    rig.server.say(keepalive(5001, reply=True))
    rig.until(lambda: len(rig.server.statuses) >= 2)
    assert {flushed for _, flushed in rig.server.statuses} == {START}
    rig.server.say(*frames[2:])
    rig.until(lambda: rig.server.flushed == 2005)


def test_stopping_flushes_and_acknowledges_whole_transactions(rig: SessionRig) -> None:
    rig.server.say(*transaction(2000), *transaction(3000, b"y"), *transaction(4000)[:-1])
    rig.until(lambda: rig.server.handed_out == 11)
    rig.end()
    assert rig.error is None
    assert rig.server.finished
    assert rig.server.flushed == 3005
    assert rig.values() == [b"x", b"y"]


def test_a_silent_server_ends_the_session(impatient: SessionRig) -> None:
    impatient.join()
    assert isinstance(impatient.error, PostgresUnreachableError)
    assert "sent nothing for 0.3 s" in str(impatient.error)


def test_full_disk_ends_the_session_without_acknowledging(rig: SessionRig) -> None:
    rig.disk.full = True
    rig.server.say(*transaction(2000))
    rig.join()
    assert isinstance(rig.error, DiskFullError)
    assert {flushed for _, flushed in rig.server.statuses} <= {START}
