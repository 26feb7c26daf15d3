"""Leaders are handed over after their proof; nothing else reaches the follower."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.config import load
from tailrace.errors import (
    DivergedError,
    LogFencedError,
    ReplicaFailedError,
    ReplicaRefusedError,
    ReplicaUnreachableError,
    TailraceError,
)
from tailrace.position import Lsn
from tailrace.replica import frames, greeting, seed
from tailrace.replica.arrivals import Arrival, Arrivals
from tailrace.replica.connection import Connection, fault_error, listen
from tailrace.replica.frames import Fault, Hello, Proof, Type
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tailrace.config.replication import Replication

KEY = "a secret of enough letters"
HANDSHAKE = seed.Handshake(version=frames.VERSION, node=1, sync=False).encode()


def settings_of(**values: object) -> Replication:
    return load(None, {"replication": {"handshake_s": 60.0, "key": KEY, **values}}).replication


class Door:
    """Arrivals on a port, and what the follower is asked."""

    def __init__(self, settings: Replication, admit: Callable[[Proof], object]) -> None:
        self.settings = settings
        self._listener = listen(("127.0.0.1", 0))
        self.arrivals = Arrivals(
            self._listener, settings, id="00", end=lambda: Lsn(7), admit=admit
        ).__enter__()

    def connect(self) -> socket.socket:
        return socket.create_connection(self._listener.getsockname()[:2], timeout=60)

    def close(self) -> None:
        self.arrivals.__exit__()
        self._listener.close()

    def refused(self) -> TailraceError:
        return wait_for(self.arrivals.refusal)

    def arrived(self) -> Arrival:
        return wait_for(lambda: self.arrivals.take(0))


@pytest.fixture
def door(request: pytest.FixtureRequest) -> Iterator[Door]:
    values: dict[str, Any] = getattr(request, "param", {})
    made = Door(settings_of(**values), lambda _proof: None)
    yield made
    made.close()


def greet(door: Door, *, key: str = KEY, epoch: int = 1) -> Connection:
    """What a leader says, up to its proof."""
    connection = Connection(door.connect(), "follower", timeout_s=60)
    connection.send_bytes(HANDSHAKE)
    assert connection.receive_answer() == seed.Answer(accepted=True, end_lsn=Lsn(7))
    own = greeting.nonce()
    connection.say(Type.HELLO, Hello(node="db1", nonce=own))
    hello = Hello.decode(connection.expect(Type.HELLO))
    greeting.check_proof(door.settings, "follower", own, hello.nonce, hello.proof)
    connection.trust()
    proof = greeting.proof(settings_of(key=key), "leader", own, hello.nonce)
    connection.say(Type.PROOF, Proof(proof=proof, log_id="log", epoch=epoch))
    return connection


def test_a_leader_with_the_key_arrives(door: Door) -> None:
    with greet(door):
        arrival = door.arrived()
        assert (arrival.node, arrival.proof.log_id) == ("db1", "log")
        assert not door.arrivals.waiting
        assert door.arrivals.refusal() is None
        arrival.connection.close()


def test_a_leader_without_the_key_is_refused(door: Door) -> None:
    with greet(door, key="another secret of letters") as connection:
        assert "shared key" in str(door.refused())
        with pytest.raises(ReplicaRefusedError, match="shared key"):
            connection.expect(Type.STATE)


def test_a_leader_that_is_not_admitted_hears_why() -> None:
    def refuse(_proof: Proof) -> None:
        raise LogFencedError("deposed")

    door = Door(settings_of(), refuse)
    with greet(door) as connection:
        assert isinstance(door.refused(), LogFencedError)
        with pytest.raises(LogFencedError, match="deposed"):
            connection.expect(Type.STATE)
    door.close()


def test_connections_that_say_nothing_hold_up_nobody(door: Door) -> None:
    """GIVEN a scan that connects and leaves, and clients that stay and say nothing, or a part of
    a frame THEN a leader arrives all the same, and its session is not interrupted."""
    door.connect().close()
    silent = [door.connect() for _ in range(8)]
    for each in silent:
        each.sendall(HANDSHAKE[:5])
    with greet(door) as connection:
        arrival = door.arrived()
        door.connect().close()
        silent[0].close()
        assert isinstance(door.refused(), ReplicaUnreachableError)
        arrival.connection.say(Type.STATE, frames.State())
        connection.expect(Type.STATE)
        assert not door.arrivals.waiting
        arrival.connection.close()
    for each in silent:
        # What is left of them ends at once, and not after their time.
        each.close()


@pytest.mark.parametrize("door", [{"handshake_s": 0.3}], indirect=True)
def test_the_whole_handshake_has_a_deadline(door: Door) -> None:
    """GIVEN a client that sends a byte again and again THEN its connection ends all the same."""
    with door.connect() as stranger:
        stranger.settimeout(0.05)
        stranger.sendall(HANDSHAKE)
        garbage = frames.encode(Type.HELLO, Hello(node="x" * 60_000).encode())
        sent = iter(garbage)

        def refused() -> TailraceError | None:
            try:
                stranger.sendall(bytes([next(sent)]))
            except OSError:
                return door.refused()
            return door.arrivals.refusal()

        assert "did not prove itself within 0.3 s" in str(wait_for(refused))


def test_a_second_leader_interrupts_the_first_one(door: Door) -> None:
    with greet(door), door.arrived().connection as served, greet(door):
        wait_for(lambda: door.arrivals.waiting)
        with pytest.raises(ReplicaUnreachableError, match="closed"):
            served.receive()
        with door.arrived().connection as newer:
            assert newer is not served


@pytest.mark.parametrize(
    ("kind", "document"),
    [
        (Type.PROOF, {"proof": "é", "log_id": "log", "epoch": 1}),
        (Type.PROOF, {"proof": "0" * 65, "log_id": "log", "epoch": 1}),
        (Type.PROOF, {"proof": "", "log_id": "\ud800", "epoch": 1}),
        (Type.PROOF, {"proof": "", "log_id": "log", "epoch": 1 << 70}),
        (Type.HELLO, {"node": "\ud800", "nonce": "00"}),
        (Type.HELLO, {"node": "x", "nonce": "\ud800"}),
        (Type.HELLO, {"node": "x", "nonce": "é"}),
    ],
)
def test_texts_that_are_no_proof_are_malformed(
    door: Door, kind: Type, document: dict[str, object]
) -> None:
    with Connection(door.connect(), "follower", timeout_s=60) as connection:
        connection.send_bytes(HANDSHAKE)
        connection.receive_answer()
        if kind is Type.PROOF:
            connection.say(Type.HELLO, Hello(node="x", nonce="00"))
            connection.expect(Type.HELLO)
        connection.send(kind, json.dumps(document).encode())
        assert door.refused().code == "MALFORMED"


@pytest.mark.parametrize("code", ["STORAGE", "FENCED", "LEADING", "DIVERGED", "?"])
def test_errors_of_a_stranger_are_only_texts(door: Door, code: str) -> None:
    with Connection(door.connect(), "follower", timeout_s=60) as connection:
        connection.send_bytes(HANDSHAKE)
        connection.receive_answer()
        connection.say(Type.ERROR, Fault(code=code, message="because"))
        refused = door.refused()
        assert type(refused) is ReplicaRefusedError
        assert "because" in str(refused)


def test_what_fails_on_the_other_machine_is_no_error_of_this_one() -> None:
    for code in ("STORAGE", "DISK_FULL", "CORRUPT", "LEADING", "UNEXPECTED", "?"):
        error = fault_error(Fault(code=code, message="because"), "db2", trusted=True)
        assert type(error) is ReplicaFailedError
        assert str(error) == f"db2: {code}: because"
    for kind in (DivergedError, LogFencedError, ReplicaRefusedError):
        error = fault_error(Fault(code=kind.code, message="because"), "db2", trusted=True)
        assert type(error) is kind
