"""Leaders that connect to a follower: each proves itself in a thread of its own.

Anything may connect: a port scan, a health probe, a stranger. None of it may disturb the leader
that is followed. So the handshake happens beside the present session and within one deadline, up to
the leader's proof and its epoch. Only a leader that has passed is handed over; it then replaces the
present one, because a broken connection can look alive on this side.
"""

from __future__ import annotations

import contextlib
import select
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import structlog

from tailrace.errors import ReplicaRefusedError, ReplicaUnreachableError, TailraceError
from tailrace.replica import frames, greeting, seed
from tailrace.replica.connection import Connection, accepted
from tailrace.replica.frames import Hello, Proof, Type

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from tailrace.config.replication import Replication
    from tailrace.position import Lsn

_TICK_S = 0.2
_MAX_HANDSHAKES = 16
"""At the same time. Further connections wait in the listener."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A leader that may be followed."""

    connection: Connection
    node: str
    proof: Proof


class Arrivals:
    """Accepts connections while it is open.

    `id` names this copy, `end` is where it ends, and `admit` raises if a leader may not be
    followed. Handshake threads call the last two.
    """

    def __init__(
        self,
        listener: socket.socket,
        settings: Replication,
        *,
        id: str,  # noqa: A002 - as in the frame
        end: Callable[[], Lsn],
        admit: Callable[[Proof], object],
    ) -> None:
        self._listener = listener
        self._settings = settings
        self._id = id
        self._end = end
        self._admit = admit
        self._free = threading.Semaphore(_MAX_HANDSHAKES)
        self._ending = threading.Event()
        self._changed = threading.Condition()
        self._newest: Arrival | None = None
        self._served: Connection | None = None
        self._refusal: TailraceError | None = None
        self._thread = threading.Thread(target=self._accept, name="arrivals", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()
        arrival = self.take(0)
        if arrival is not None:
            arrival.connection.close()

    @property
    def waiting(self) -> bool:
        """Whether a leader waits to replace the present one."""
        return self._newest is not None

    def take(self, wait_s: float) -> Arrival | None:
        """The newest leader. Its connection is interrupted when a further one arrives."""
        with self._changed:
            if self._newest is None and self._refusal is None:
                self._changed.wait(wait_s)
            arrival, self._newest = self._newest, None
            self._served = None if arrival is None else arrival.connection
            return arrival

    def refusal(self) -> TailraceError | None:
        """Why the last connection was refused; once."""
        with self._changed:
            refusal, self._refusal = self._refusal, None
            return refusal

    def _accept(self) -> None:
        while not self._ending.is_set():
            if not select.select([self._listener], [], [], _TICK_S)[0]:
                continue
            if not self._free.acquire(timeout=_TICK_S):
                continue
            try:
                sock, address = self._listener.accept()
            except OSError as error:
                self._free.release()
                structlog.get_logger().warning("replica.accept_failed", reason=str(error))
                self._ending.wait(_TICK_S)
                continue
            peer = f"{address[0]}:{address[1]}"
            threading.Thread(
                target=self._greet, args=(sock, peer), name="handshake", daemon=True
            ).start()

    def _greet(self, sock: socket.socket, peer: str) -> None:
        try:
            with contextlib.ExitStack() as held:
                connection = held.enter_context(accepted(sock, peer, self._settings))
                arrival = self._handshake(connection)
                held.pop_all()
            self._hand_over(arrival)
        except TailraceError as error:
            self._refuse(peer, error)
        except Exception:
            structlog.get_logger().exception("replica.handshake_failed", leader=peer)
        finally:
            self._free.release()

    def _handshake(self, connection: Connection) -> Arrival:
        try:
            self._answer(connection)
            node, proof = self._exchange_proofs(connection)
            self._admit(proof)
        except TailraceError as error:
            connection.report(error)
            raise
        return Arrival(connection=connection, node=node, proof=proof)

    def _answer(self, connection: Connection) -> None:
        handshake = seed.Handshake.decode(connection.receive_bytes(seed.HANDSHAKE.size))
        accepts = handshake.version == frames.VERSION
        text = "" if accepts else f"this follower speaks version {frames.VERSION}"
        answer = seed.Answer(accepted=accepts, end_lsn=self._end(), message=text)
        connection.send_bytes(answer.encode())
        if not accepts:
            raise ReplicaRefusedError(f"the leader speaks version {handshake.version}: {text}")

    def _exchange_proofs(self, connection: Connection) -> tuple[str, Proof]:
        hello = Hello.decode(connection.expect(Type.HELLO))
        own, settings = greeting.nonce(), self._settings
        own_proof = greeting.proof(settings, "follower", hello.nonce, own)
        node = greeting.node_name(settings)
        answer = Hello(node=node, nonce=own, proof=own_proof, id=self._id)
        connection.say(Type.HELLO, answer)
        proof = Proof.decode(connection.expect(Type.PROOF))
        greeting.check_proof(settings, "leader", hello.nonce, own, proof.proof)
        connection.trust()
        return hello.node, proof

    def _hand_over(self, arrival: Arrival) -> None:
        with self._changed:
            if self._ending.is_set():
                arrival.connection.close()
                return
            if self._newest is not None:
                self._newest.connection.close()
            self._newest = arrival
            if self._served is not None:
                self._served.interrupt()
            self._changed.notify()

    def _refuse(self, peer: str, error: TailraceError) -> None:
        events = structlog.get_logger()
        if isinstance(error, ReplicaUnreachableError):
            events.info("replica.handshake_lost", leader=peer, reason=str(error))
        else:
            events.error(
                "replica.refused", leader=peer, code=error.code, reason=str(error), hint=error.hint
            )
        with self._changed:
            self._refusal = error
            self._changed.notify()
