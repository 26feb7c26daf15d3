"""Pipelines, parked messages and backfills continue after a takeover, on another machine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.parking import control
from tailrace.parking.listing import Listing
from tailrace.parking.parking import folder_of, store_of
from tailrace.parking.selection import Selection
from tailrace.testing.process import free_port
from tailrace.testing.receiver import HttpReceiver, HttpRequest, HttpResponse
from tests.command import call
from tests.integration.replica.cluster import QUICK
from tests.integration.replica.test_processes import Machine
from tests.jetstream import received, stored
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tailrace.testing.nats import EmbeddedNats
    from tests.fix_postgres import Database

pytestmark = [pytest.mark.spark, pytest.mark.long]

REFUSED = 7


class Receiver(HttpReceiver):
    """Refuses one row, until it is `healed`."""

    def __init__(self) -> None:
        super().__init__(self._answer)
        self.healed = False
        self.accepted: list[int] = []

    def _answer(self, request: HttpRequest) -> HttpResponse:
        number = json.loads(request.body)["after"]["id"]
        if number == REFUSED and not self.healed:
            return HttpResponse(status=422, body=b"no")
        self.accepted.append(number)
        return HttpResponse()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as made:
        yield made


@pytest.fixture
def two(
    tmp_path: Path, database: Database, nats_server: EmbeddedNats, receiver: Receiver
) -> Iterator[tuple[Machine, Machine]]:
    """Two machines with the same pipelines; the second takes over by itself."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION tailrace FOR TABLE t")
    slot = database.name[-50:]
    database.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", slot)
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    hook = {"type": "http", "url": receiver.url, "path": "/{table}", "allow_private": True}
    stream = {"name": database.name, "subjects": [f"{database.name}.>"]}
    events = {
        "type": "nats", "url": nats_server.url, "stream": stream,
        "subject": f"{database.name}.{{table}}",
    }  # fmt: skip
    pipelines = {
        "events": {"shape": "plain", "sink": events},
        "hooks": {
            "shape": "plain",
            "max_open_s": 2.0,
            "sink": hook,
            "retry": {"attempts": 2, "first_s": 0.01},
        },
    }
    settings = {
        **QUICK, "state_every_s": 0.5, "takeover": "auto", "takeover_after_s": 2.0,
        "mode": "sync",
    }  # fmt: skip

    def machine(command: str, name: str, own: str, other: str) -> Machine:
        replication = {**settings, "node": name, "listen": own, "followers": [other]}
        source = {"dsn": database.socket_dsn, "slot": slot}
        return Machine(
            command, tmp_path / name, source=source, replication=replication, pipelines=pipelines
        )

    made = machine("run", "one", *addresses), machine("follow", "two", *addresses[::-1])
    yield made
    for each in made:
        each.kill()


def parked(machine: Machine, pipeline: str = "hooks") -> list[int]:
    """The rows that are parked on a machine."""
    store = store_of(folder_of(machine.folder / "data", pipeline))
    with Listing(store) as listing:
        found = list(control.export(listing, Selection()))
    return [json.loads(message["payload"])["after"]["id"] for message in found]


def lacking(leader: Machine) -> int:
    [follower] = leader.status()["replication"]["leader"]["followers"]
    return int(follower["state_lacking"])


def ids(server: EmbeddedNats, stream: str) -> list[int]:
    return [message.json["after"]["id"] for message in received(server.url, stream)]


def test_pipelines_continue_where_they_were(
    two: tuple[Machine, Machine], database: Database, nats_server: EmbeddedNats, receiver: Receiver
) -> None:
    """GIVEN pipelines with a parked message WHEN their machine is lost THEN they continue on the
    other: a stream has each change once, a webhook each change, and the parked message is there
    and can be retried. The old leader gets the state of the new one."""
    one, other = two
    other.start()
    one.start()
    database.execute("INSERT INTO t SELECT generate_series(1, 20)")
    wait_for(lambda: stored(nats_server.url, database.name) == 20, lambda: one.output[-3000:])
    wait_for(lambda: sorted(receiver.accepted) == [n for n in range(1, 21) if n != REFUSED])
    wait_for(lambda: parked(one) == [REFUSED])
    wait_for(lambda: bundles(other) == 3 and lacking(one) == 0, other.status)
    before = len(receiver.accepted)
    one.kill()
    database.execute("INSERT INTO t SELECT generate_series(21, 40)")
    wait_for(lambda: "replica.state_adopted" in other.output, lambda: other.output[-3000:])
    wait_for(lambda: stored(nats_server.url, database.name) == 40, lambda: other.output[-3000:])
    assert ids(nats_server, database.name) == list(range(1, 41))
    wait_for(lambda: set(receiver.accepted[before:]) >= set(range(21, 41)))
    assert parked(other) == [REFUSED]
    receiver.healed = True
    done = call("parked", "retry", "hooks", "--all", "-c", other.folder / "tailrace.yml")
    assert done.returncode == 0, done.stderr
    wait_for(lambda: REFUSED in receiver.accepted)
    wait_for(lambda: parked(other) == [])
    one.start()
    wait_for(lambda: bundles(one) == 3, lambda: one.output[-3000:])
    wait_for(lambda: other.ready() == 200, other.status)


def bundles(machine: Machine) -> int:
    """How many bundles a follower has."""
    replication: dict[str, Any] = machine.status().get("replication") or {}
    return int((replication.get("follower") or {}).get("bundles", 0))
