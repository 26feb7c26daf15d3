"""Clients that are no leader, and followers that are none: nobody else notices them."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

from tailrace.position import Lsn
from tailrace.replica import frames, seed
from tailrace.replica.frames import Fault, Hello, Type
from tests.integration.replica.cluster import Source, arrived
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.integration.replica.conftest import Copies, Leads

KEY = "a secret of enough letters"
HANDSHAKE = seed.Handshake(version=frames.VERSION, node=1, sync=False).encode()


def talk(port: int, *parts: bytes) -> None:
    """Send something after the handshake, and wait until the follower ends the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as stranger:
        stranger.sendall(HANDSHAKE + b"".join(parts))
        while stranger.recv(1000):
            pass


def test_strangers_do_not_disturb_a_leader(source: Source, copy: Copies, lead: Leads) -> None:
    """GIVEN a leader that streams WHEN others connect, are silent, or send what would end a process
    THEN its first connection goes on."""
    follower = copy(key=KEY, handshake_s=0.5)
    leader = lead(follower.address, key=KEY)
    source.append(10)
    arrived(source, follower)
    silent = socket.create_connection(("127.0.0.1", follower.port))
    for _ in range(3):
        socket.create_connection(("127.0.0.1", follower.port)).close()
    for code in ("STORAGE", "FENCED", "LEADING"):
        fault = Fault(code=code, message="because").encode()
        talk(follower.port, frames.encode(Type.ERROR, fault))
    hello = Hello(node="x", nonce="00").encode()
    talk(follower.port, frames.encode(Type.HELLO, b'{"node": "x", "nonce": "\\\\ud800"}'))
    talk(
        follower.port,
        frames.encode(Type.HELLO, hello),
        frames.encode(Type.PROOF, '{"proof": "é"}'.encode()),
    )
    source.append(10)
    arrived(source, follower)
    silent.close()
    assert follower.error is None
    assert follower.state == "following"
    [figures] = leader.leader.figures().followers
    assert (figures.state, figures.connections) == ("streaming", 1)


def impostor(answer: bytes) -> tuple[str, Callable[[], None]]:
    """A follower that accepts every handshake and then says something. Its address, and its end."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.sendall(seed.Answer(accepted=True, end_lsn=Lsn(0)).encode())
                connection.sendall(answer)
                while connection.recv(1000):
                    pass

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()

    def end() -> None:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(60)

    return f"127.0.0.1:{listener.getsockname()[1]}", end


def test_a_follower_without_proof_ends_nothing(source: Source, copy: Copies, lead: Leads) -> None:
    """GIVEN something that says FENCED in place of a proof THEN the other follower goes on."""
    fault = Fault(code="FENCED", message="because").encode()
    address, end = impostor(frames.encode(Type.ERROR, fault))
    follower = copy(key=KEY)
    leader = lead(follower.address, address, key=KEY)
    wait_for(lambda: leader.leader.figures().followers[1].state == "REPLICA_REFUSED")
    source.append(10)
    arrived(source, follower)
    assert leader.error is None
    leader.end()
    end()


def test_a_follower_of_another_log_with_a_higher_epoch(
    source: Source, copy: Copies, lead: Leads, tmp_path: Path
) -> None:
    """GIVEN a wrong address, whose follower has a log that was started more often THEN that one is
    DIVERGED, and the other follower goes on."""
    other = Source(tmp_path / "other", seed=7, log_id="log-2")
    other.append(30)
    other.close()
    stranger, follower = copy("other"), copy()
    stranger.follower._copy.note_epoch(99)
    leader = lead(stranger.address, follower.address)
    wait_for(lambda: leader.leader.figures().followers[0].state == "DIVERGED")
    source.append(10)
    arrived(source, follower)
    assert leader.error is None
