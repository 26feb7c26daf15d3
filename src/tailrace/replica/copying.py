"""Version 2 on the leader's side: one connection to a follower that copies the log's files."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tailrace.errors import CorruptError, MalformedError, ReplicaUnreachableError, TailraceError
from tailrace.log import lease
from tailrace.log.format import mark as marks
from tailrace.log.segments import Segments
from tailrace.replica import begin, frames, greeting
from tailrace.replica.fetches import Fetches
from tailrace.replica.frames import (
    Data,
    Heartbeat,
    Hello,
    Marked,
    Proof,
    State,
    Stored,
    Type,
)
from tailrace.replica.outgoing import Outgoing
from tailrace.replica.states import Transfer

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.config.replication import Replication
    from tailrace.log.format.mark import Mark
    from tailrace.log.store import Store
    from tailrace.observe.figure import Recorder
    from tailrace.observe.replica import FollowerFigures
    from tailrace.replica.connection import Connection
    from tailrace.replica.states import States

_MAX_ORDERS = 4
"""So many cuts and resets, and a follower counts as confused."""
_OLDEST_EVERY_S = 1.0
_WAIT_S = 0.5
_GATHER_S = 0.01
"""In mode async capture does not wait for followers: fewer, larger writes cost it less."""


class Copying:
    """Brings a follower up to date and keeps it so.

    `held` is called with the follower's id and what it has fsynced.
    """

    def __init__(
        self,
        store: Store,
        connection: Connection,
        settings: Replication,
        counts: Recorder[FollowerFigures],
        *,
        held: Callable[[str, Mark | None], None],
        states: States | None = None,
    ) -> None:
        self._store = store
        self._connection = connection
        self._settings = settings
        self._counts = counts
        self._note_held = held
        self._id = ""
        self._compress = settings.compression == "zstd"
        self._watch = store.watch(marks.NAME)
        self._watch.also(connection.socket.fileno())
        self._received_at = self._beat_at = time.monotonic()
        self._oldest = 0
        self._oldest_at = float("-inf")
        self._transfer = Transfer(states, connection, counts)
        self._visible: Mark | None = None
        """What the follower was sent last."""
        self._fetches = Fetches(store, connection, compress=self._compress)

    def run(self, stopping: Callable[[], bool]) -> None:
        """Serve the connection until it ends."""
        try:
            outgoing = self._open()
            self._connection.limit(self._settings.timeout_s)
            self._received_at = self._beat_at = time.monotonic()
            self._counts.set(state="catching-up", reason="", connected=True)
            self._send(outgoing, stopping)
        except TailraceError as error:
            self._connection.report(error)
            raise
        finally:
            self._transfer.close()

    def _open(self) -> Outgoing:
        """Who is there, what it has, and where to begin."""
        settings, connection = self._settings, self._connection
        node, own = greeting.node_name(settings), greeting.nonce()
        connection.say(Type.HELLO, Hello(node=node, nonce=own))
        hello = Hello.decode(connection.expect(Type.HELLO))
        greeting.check_proof(settings, "follower", own, hello.nonce, hello.proof)
        connection.trust()
        self._counts.set(node=hello.node)
        self._id = hello.id
        log_id = Segments(self._store).id
        proof = greeting.proof(settings, "leader", own, hello.nonce)
        epoch = lease.last_epoch(self._store)
        connection.say(Type.PROOF, Proof(proof=proof, log_id=log_id, epoch=epoch))
        for _ in range(_MAX_ORDERS):
            state = State.decode(connection.expect(Type.STATE))
            order = begin.decide(
                self._store, log_id=log_id, epoch=epoch, mark=self._end(), state=state
            )
            if order.action != "continue":
                self._held(None)
                self._counts.add(resets=order.action == "reset")
            connection.say(Type.BEGIN, order)
            if order.action == "continue":
                self._held(state.end())
                return Outgoing(self._store, order.sequence, order.offset)
        raise MalformedError(f"{connection.peer} does not do what it is asked to")

    def _held(self, mark: Mark | None) -> None:
        self._note_held(self._id, mark)

    def _end(self) -> Mark:
        return Segments(self._store).durable_end()

    def _send(self, outgoing: Outgoing, stopping: Callable[[], bool]) -> None:
        sent: Mark | None = None
        while not stopping():
            end, seen = self._end(), marks.read(self._store, marks.VISIBLE)
            moved = True
            if sent is None or end.place > sent.place:
                self._send_upto(outgoing, end, stopping)
                if not self._settings.waits_for:
                    time.sleep(_GATHER_S)
                sent = end
            elif seen != self._visible:
                self._mark(end)
            else:
                moved = False
            moved |= self._transfer.step(sent, self._visible)
            if not moved and not self._fetches.busy:
                self._watch.wait(_WAIT_S)
            self._listen()
            self._fetches.step()
            self._note_state()

    def _note_state(self) -> None:
        """Sent is everything; the leader's own damage does not end the connection."""
        damage = self._fetches.damage
        state = CorruptError.code if damage else "streaming"
        figures = self._counts.figures
        if (figures.state, figures.reason) != (state, damage):
            self._counts.set(state=state, reason=damage)

    def _send_upto(self, outgoing: Outgoing, end: Mark, stopping: Callable[[], bool]) -> None:
        for piece in outgoing.pieces(end):
            if isinstance(piece, Data):
                self._data(piece)
            else:
                self._mark(piece)
            self._listen()
            if stopping():
                return

    def _data(self, data: Data) -> None:
        self._connection.send(Type.DATA, *data.parts(), compress=self._compress)
        self._counts.add(bytes=len(data.content))

    def _mark(self, mark: Mark) -> None:
        now = time.monotonic()
        if now - self._oldest_at >= _OLDEST_EVERY_S:
            self._oldest_at = now
            self._oldest = Segments(self._store).segments()[0].sequence
            self._fetches.forget_before(self._oldest)
        # A torn record, read as if there were none, would show readers everything.
        self._visible = marks.read(self._store, marks.VISIBLE)
        marked = Marked(oldest=self._oldest, mark=mark, visible=self._visible)
        self._connection.send(Type.MARK, marked.encode())

    def _listen(self) -> None:
        """Take what the follower has sent, and show that this side lives."""
        now = time.monotonic()
        while self._connection.waiting():
            kind, payload = self._connection.receive()
            self._received_at = now
            if kind is Type.FETCH:
                self._fetches.ask(payload)
            elif kind is Type.STORED:
                self._transfer.stored(Stored.decode(payload))
            elif kind is not Type.ACK:
                raise MalformedError(f"the follower sent a frame {kind.name}")
            elif payload:
                self._held(frames.decode_mark(payload))
        if now - self._beat_at >= self._settings.heartbeat_s:
            self._beat_at = now
            epoch = lease.last_epoch(self._store)
            beat = Heartbeat(epoch, int(time.time() * 1000))
            self._connection.send(Type.HEARTBEAT, beat.encode())
        if now - self._received_at > self._settings.timeout_s:
            raise ReplicaUnreachableError(
                f"{self._connection.peer} was silent for {self._settings.timeout_s:g} s"
            )
