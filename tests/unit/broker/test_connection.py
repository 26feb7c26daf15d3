"""When the broker closes a connection that waits, with a clock of the test."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from tailrace.broker.connection import Connection
from tailrace.broker.limits import Limits

LIMITS = Limits(login_s=10, request_s=60, stalled_s=30, idle_s=600)
START = 1000.0


@dataclass
class Client:
    """A connection without a network."""

    users: dict[str, object] = field(default_factory=dict)
    login_required: bool = False
    unsent: int = 0
    waiting: int = 0

    def connection(self) -> Connection:
        addresses = {
            "sockname": ("127.0.0.1", 9092),
            "peername": ("127.0.0.1", 5),
            "ssl_object": None,
        }
        transport = SimpleNamespace(get_write_buffer_size=lambda: self.unsent)
        writer: Any = SimpleNamespace(get_extra_info=addresses.get, transport=transport)
        self.broker = SimpleNamespace(
            limits=LIMITS,
            access=SimpleNamespace(users=self.users),
            memory_waiting=self.waiting,
        )
        broker: Any = self.broker
        reader: Any = None
        return Connection(
            broker,
            reader,
            writer,
            login_required=self.login_required,
            advertised=None,
            clock=lambda: START,
        )


def reason(connection: Connection, after_s: float) -> str | None:
    overdue = connection.overdue(START + after_s)
    return None if overdue is None else overdue.reason


def test_a_login_must_be_complete_in_time() -> None:
    for client in (Client(users={"ann": object()}), Client(login_required=True)):
        connection = client.connection()
        assert not connection.admitted
        assert reason(connection, 10) is None
        assert reason(connection, 11) == "login"
    assert reason(Client().connection(), 11) is None


def test_a_logged_in_user_is_admitted_until_it_is_removed() -> None:
    client = Client(users={"ann": object()})
    connection = client.connection()
    connection.login.user = "ann"
    assert (connection.admitted, connection.stale) == (True, False)
    client.users.clear()
    assert connection.stale


def test_an_idle_connection_is_closed() -> None:
    connection = Client().connection()
    assert reason(connection, 600) is None
    assert reason(connection, 601) == "idle"


def test_a_request_must_be_complete_in_time() -> None:
    connection = Client().connection()
    connection._reading_since = START
    assert reason(connection, 60) is None
    assert reason(connection, 61) == "slow"


def test_unread_responses_matter_while_others_wait_for_memory() -> None:
    client = Client(unsent=100)
    connection = client.connection()
    assert reason(connection, 1) is None
    assert reason(connection, 40) is None
    client.broker.memory_waiting = 1
    assert reason(connection, 40) == "slow"
    # The client has read a part: it is not stalled.
    client.unsent = 50
    assert reason(connection, 41) is None
    assert reason(connection, 72) == "slow"


def test_the_reason_has_the_limit() -> None:
    overdue = Client(login_required=True).connection().overdue(START + 11)
    assert str(overdue) == "no login within 10 s"
