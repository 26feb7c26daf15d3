"""A follower: listens for its leader, writes what it sends, and acknowledges what is durable.

One leader at a time. One that arrives later takes the place of the first, after it has proved
itself (`tailrace.replica.arrivals`). `docs/formats/replication.md` has the frames.
"""

from __future__ import annotations

import contextlib
import time
from functools import partial
from typing import TYPE_CHECKING

import structlog

from tailrace.errors import (
    CorruptError,
    DiskFullError,
    DivergedError,
    LogFencedError,
    MalformedError,
    ReplicaUnreachableError,
    StorageError,
    TailraceError,
)
from tailrace.log import acknowledged, lease, retention
from tailrace.observe.figure import Recorder
from tailrace.observe.replica import FollowingFigures
from tailrace.position import Lsn
from tailrace.replica import begin, frames, greeting, kept
from tailrace.replica.arrivals import Arrivals
from tailrace.replica.connection import Connection, listen
from tailrace.replica.copy import Copy
from tailrace.replica.frames import (
    Begin,
    BundleHead,
    Bundles,
    Data,
    Fetched,
    Heartbeat,
    Marked,
    Proof,
    Type,
)
from tailrace.replica.received import Received
from tailrace.replica.scrub import Scrub

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from tailrace.config.replication import Replication
    from tailrace.log.store import LocalStore
    from tailrace.replica.arrivals import Arrival

_STATE_TYPES = frozenset({Type.BUNDLES, Type.BUNDLE, Type.CONTENT})
_TICK_S = 0.2
_SYNC_BYTES = 8 << 20
"""Data after which a follower does not wait for a pause to make it durable."""


class Follower:
    """Serves one leader after another until `stopping` is true.

    `data` is the folder for the leader's small state; without it, only the log is copied.
    `pipelines` are those that run where the leader is.
    """

    def __init__(
        self,
        store: LocalStore,
        settings: Replication,
        *,
        data: Path | None = None,
        pipelines: Collection[str] = (),
        stopping: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._data = data
        self._pipelines = pipelines
        self._settings = settings
        self._stopping = stopping
        self._clock = clock
        self._copy = Copy(store)
        self.counts = Recorder(FollowingFigures())
        self._scrub = Scrub(self._copy, settings, self.counts)
        self.received_at = clock()
        """When the last frame of the leader arrived."""
        self._events = structlog.get_logger()

    def run(self, address: tuple[str, int]) -> None:
        """Hold the log's lock and serve."""
        with lease.locked(self._store), listen(address) as listener:
            if not lease.follows(self._store):
                # It has led. First the pins: what ends in between begins with them again.
                retention.forget_led(self._store, self._pipelines)
                lease.follow(self._store)
            acknowledged.prepare(self._store, 0)
            self._copy.open()
            self._note_state("waiting")
            host, port = listener.getsockname()[:2]
            self._events.info("replica.listening", address=f"{host}:{port}", end=self._end())
            arrivals = Arrivals(
                listener, self._settings, id=greeting.follower_id(self._store),
                end=self._end_lsn, admit=partial(check_leader, self._copy),
            )  # fmt: skip
            try:
                with arrivals:
                    self._serve(arrivals)
            finally:
                self._copy.close()

    def _serve(self, arrivals: Arrivals) -> None:
        """Follow one leader after another."""
        while not self._stopping():
            arrival = arrivals.take(_TICK_S)
            refusal = arrivals.refusal()
            if arrival is not None:
                with arrival.connection:
                    self._follow_until_lost(arrival, arrivals)
            elif isinstance(refusal, ReplicaUnreachableError):
                self._note_state("waiting", str(refusal))
            elif refusal is not None:
                self._note_state(refusal.code, str(refusal))

    def _follow_until_lost(self, arrival: Arrival, arrivals: Arrivals) -> None:
        peer = arrival.connection.peer
        try:
            self._follow(arrival, arrivals)
        except StorageError:
            # After a failed fsync nobody knows what is on the disk: the next start finds out.
            raise
        except ReplicaUnreachableError as error:
            self._events.warning("replica.leader_lost", leader=peer, reason=str(error))
            self._note_state("waiting", str(error))
        except TailraceError as error:
            self._events.error(
                "replica.refused", leader=peer, code=error.code, reason=str(error), hint=error.hint
            )
            self._note_state(error.code, str(error))
            if isinstance(error, (CorruptError, DivergedError, MalformedError)):
                self._copy.distrust()
        with contextlib.suppress(DiskFullError):
            self._copy.recover()
        # Who was refused meanwhile does not matter: there was a leader.
        arrivals.refusal()

    def _follow(self, arrival: Arrival, arrivals: Arrivals) -> None:
        connection = arrival.connection
        received = None if self._data is None else Received(self._data)
        try:
            session = _Session(
                self._copy, connection, self._settings, self.counts,
                scrub=self._scrub, received=received,
            )  # fmt: skip
            session.open(arrival)
            self._events.info("replica.following", leader=connection.peer, end=self._end())
            self._scrub.begin()
            connection.while_receiving(partial(self._note_received, session))
            while not self._stopping():
                if arrivals.waiting:
                    self._events.info("replica.leader_replaced", leader=connection.peer)
                    return
                self._note_following()
                self._scrub.step(self._clock(), connection)
                if not connection.waiting(self._scrub.wait_s(self._clock(), _TICK_S)):
                    session.check_alive(self._clock())
                    continue
                self._note_received(session)
                session.take()
        except TailraceError as error:
            connection.report(error)
            raise
        finally:
            self._scrub.end()
            self.counts.set(connected=False)
            if received is not None:
                received.discard()

    def _note_received(self, session: _Session) -> None:
        """On a slow line a frame takes long: the leader has to receive something meanwhile."""
        self.received_at = session.received_at = self._clock()
        session.acknowledge_if_due()

    def _end_lsn(self) -> Lsn:
        mark = self._copy.mark
        return Lsn(0) if mark is None else mark.end_lsn

    def _end(self) -> str:
        return "" if self._copy.mark is None else str(self._copy.mark.end_lsn)

    def _note_following(self) -> None:
        """A segment that cannot be read does not stop the rest."""
        reason = self._scrub.reason
        state = CorruptError.code if reason else "following"
        if (self.counts.figures.state, self.counts.figures.reason) != (state, reason):
            self._note_state(state, reason)

    def _note_state(self, state: str, reason: str = "") -> None:
        cut_bytes = kept.bytes_kept(self._store)
        self.counts.set(state=state, reason=reason, cut_bytes=cut_bytes)
        _note_mark(self.counts, self._copy)


class _Session:
    """One connection of a leader."""

    def __init__(
        self,
        copy: Copy,
        connection: Connection,
        settings: Replication,
        counts: Recorder[FollowingFigures],
        *,
        scrub: Scrub,
        received: Received | None,
    ) -> None:
        self._copy = copy
        self._received = received
        self._connection = connection
        self._settings = settings
        self._counts = counts
        self._scrub = scrub
        self._epoch = 0
        self._oldest = 0
        self._marked: Marked | None = None
        self._unsynced = 0
        self.received_at = self._acknowledged_at = time.monotonic()

    def open(self, arrival: Arrival) -> None:
        """Agree with the leader on the place where it begins."""
        proof = arrival.proof
        # Once more: the leader before this one may have reported a later epoch since.
        check_leader(self._copy, proof)
        self._copy.note_epoch(proof.epoch)
        self._epoch = proof.epoch
        self._counts.set(leader_node=arrival.node)
        while True:
            self._connection.say(Type.STATE, self._state())
            order = Begin.decode(self._connection.expect(Type.BEGIN))
            if order.action == "continue":
                break
            self._obey(order)
        self._copy.begin(proof.log_id, order.sequence, order.offset)
        self._connection.limit(self._settings.timeout_s)
        self._counts.set(connected=True, leader=self._connection.peer, epoch=self._epoch)

    def _state(self) -> frames.State:
        copy = self._copy
        # A disk that was full may have kept the last connection from doing so.
        copy.recover()
        epoch = lease.last_epoch(copy.store)
        return begin.state_of(copy.store, log_id=copy.log_id, epoch=epoch, mark=copy.mark)

    def _obey(self, order: Begin) -> None:
        if order.action == "cut":
            self._copy.cut(order.sequence, order.offset)
        elif order.action == "reset":
            structlog.get_logger().warning("replica.starting_over", segment=order.sequence)
            self._copy.reset()
            self._counts.add(resets=1)
        else:
            raise MalformedError(f"the leader asks for the unknown action {order.action!r}")

    def check_alive(self, now: float) -> None:
        """Give up a silent leader."""
        if now - self.received_at > self._settings.timeout_s:
            raise ReplicaUnreachableError(
                f"{self._connection.peer} was silent for {self._settings.timeout_s:g} s"
            )

    def take(self) -> None:
        """The next frame; what it completes is made durable when no other is waiting."""
        kind, payload = self._connection.receive()
        if kind is Type.DATA:
            data = Data.decode(payload)
            self._copy.write(data)
            self._marked = None
            self._unsynced += len(data.content)
            self._counts.add(bytes=len(data.content))
        elif kind is Type.MARK:
            self._marked = Marked.decode(payload)
        elif kind is Type.HEARTBEAT:
            self._heartbeat(Heartbeat.decode(payload))
        elif kind in _STATE_TYPES:
            self._take_state(kind, payload)
        elif kind is Type.PIECE:
            self._scrub.take(Data.decode(payload), self.received_at)
        elif kind is Type.FETCHED:
            self._scrub.finish(Fetched.decode(payload), self.received_at)
        else:
            raise MalformedError(f"the leader sent a frame {kind.name}")
        if self._marked is not None:
            # Pieces of another segment may follow one another for long: no ACK waits for them.
            hurry = self._unsynced >= _SYNC_BYTES or kind is Type.PIECE
            if hurry or not self._connection.waiting():
                self._publish(self._marked)
        self.acknowledge_if_due()

    def acknowledge_if_due(self) -> None:
        """A heartbeat, which asks for an acknowledgement, may wait behind data."""
        if self.received_at - self._acknowledged_at >= self._settings.timeout_s / 4:
            self._acknowledge()

    def _take_state(self, kind: Type, payload: frames.Buffer) -> None:
        received = self._received
        if received is None:
            return
        if kind is Type.BUNDLES:
            received.keep(Bundles.decode(payload).names)
        elif kind is Type.BUNDLE:
            received.begin(BundleHead.decode(payload))
        elif received.take(payload):
            if self._marked is not None:
                # No position in a bundle is beyond the copy.
                self._publish(self._marked)
            stored = received.complete()
            self._counts.add(bundles_received=1)
            if stored is not None:
                self._connection.say(Type.STORED, stored)
        self._counts.set(bundles=len(received.names()))

    def _publish(self, marked: Marked) -> None:
        self._copy.publish(marked)
        self._marked, self._unsynced = None, 0
        self._acknowledge()
        if marked.oldest != self._oldest:
            self._oldest = marked.oldest
            self._copy.delete_before(marked.oldest)
        _note_mark(self._counts, self._copy)

    def _heartbeat(self, beat: Heartbeat) -> None:
        if beat.epoch > self._epoch:
            self._epoch = beat.epoch
            self._copy.note_epoch(beat.epoch)
            self._counts.set(epoch=beat.epoch)
        self._acknowledge()

    def _acknowledge(self) -> None:
        mark = self._copy.mark
        self._acknowledged_at = self.received_at
        self._connection.send(Type.ACK, b"" if mark is None else mark.encode())


def check_leader(copy: Copy, proof: Proof) -> None:
    """Refuse a leader of another log, whose epochs mean nothing here, and a deposed one."""
    if copy.log_id and proof.log_id != copy.log_id:
        raise DivergedError(
            f"the leader has the log {proof.log_id}, but this copy is of the log {copy.log_id}",
            hint="Compare the addresses in replication.followers, or give the follower an empty "
            "log folder.",
        )
    highest = lease.last_epoch(copy.store)
    if proof.epoch < highest:
        raise LogFencedError(
            f"the leader is of epoch {proof.epoch}, but epoch {highest} has begun",
            hint="Another machine has taken over. Let this one follow: tailrace follow",
        )


def _note_mark(counts: Recorder[FollowingFigures], copy: Copy) -> None:
    mark = copy.mark
    if mark is not None:
        counts.set(end_lsn=mark.end_lsn, repairs=copy.repairs)
