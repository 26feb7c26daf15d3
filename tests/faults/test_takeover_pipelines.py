"""Machines are lost under load, again and again; the pipelines continue on the other one.

Two machines with `takeover: auto` and the same pipelines. Rows have counters that only grow, and
certain changes are refused for good. The machine that leads is killed at a random moment, with
everything that runs on it, and follows when it comes back. In the end each change was accepted or
is parked, none twice by a sink that promises that, and no counter before a smaller one. With
`visible: quorum`, what a sink has accepted when a machine is lost is on the other one.
"""

from __future__ import annotations

import random
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

import psycopg
import pytest
from typing_extensions import override

from tailrace.log.changes import read_changes
from tailrace.log.format import mark as marks
from tailrace.log.reader import Log
from tailrace.log.store import LocalStore
from tailrace.position import Lsn
from tests.faults import soak
from tests.faults.destinations import DESTINATIONS
from tests.faults.test_parking import COMMITTED, INCREMENT, TABLES, Counting, in_order
from tests.integration.replica.pair import Pair, parked
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tailrace.position import Position
    from tests.faults.destination import Change, Destination
    from tests.fix_postgres import Database
    from tests.integration.replica.test_processes import Machine

pytestmark = pytest.mark.long

NAME = "plain"
ONCE = ("postgres", "redis", "nats")
"""Sinks that accept no change twice, whatever state their pipeline has."""
CI_TAKEOVERS, KEYS = 2, 200
CATCH_UP_S = 900
TAKEOVER_S = 300


@pytest.fixture
def destination(request: pytest.FixtureRequest, tmp_path: Path, seed: int) -> Iterator[Destination]:
    if request.param == "redis":
        request.getfixturevalue("redis_available")
    with DESTINATIONS[request.param](tmp_path, seed) as made:
        yield made


@pytest.fixture
def pair(tmp_path: Path, victim_database: Database) -> Iterator[Pair]:
    made = Pair(tmp_path, victim_database, TABLES)
    yield made
    made.end()


class Steady(Counting):
    """Increments counters, at most 400 a second, until the end of the block."""

    def __init__(self, database: Database, seed: int) -> None:
        super().__init__(database, seed, changes=0, keys=KEYS)
        self._stop = threading.Event()

    @override
    def _run(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while not self._stop.wait(0.05):
                keys = self._rng.sample(range(1, KEYS + 1), self._rng.choice([1, 5, 20]))
                connection.execute(INCREMENT, [keys])

    @override
    def __exit__(self, *_: object) -> None:
        self._stop.set()
        super().__exit__()


def leads(machine: Machine) -> bool:
    """Whether a machine captures, has a follower, and delivers."""
    status = machine.status()
    running = status.get("pipelines", {}).get(NAME, {}).get("state") == "running"
    return running and machine.ready() == 200


def captures(machine: Machine) -> bool:
    """Whether a machine has taken over: it captures, without a follower yet."""
    return bool(machine.status().get("is_connected"))


def delivered(machine: Machine, end: Lsn) -> bool:
    """Whether the pipeline of a machine has passed a position."""
    position = machine.status().get("pipelines", {}).get(NAME, {}).get("position")
    return bool(position) and Lsn.parse(position.partition(".")[0]) >= end


class Durable(LocalStore):
    """A log without the mark for readers: all that the machine has fsynced."""

    @override
    def read(self, name: str, offset: int, length: int) -> bytes:
        if name == marks.VISIBLE:
            raise FileNotFoundError(name)
        return super().read(name, offset, length)


def fsynced(machine: Machine, upto: Position) -> set[Change]:
    """The changes up to a position of a machine's log, whether its readers see them or not."""
    log = Log(Durable(machine.folder / "data" / "log"))
    found = set()
    for change in read_changes(log, log.earliest(), upto):
        match change.after:
            case (bytes(row), bytes(number), *_):
                found.add((int(row), int(number)))
    return found


def lose(lost: Machine, other: Machine, destination: Destination) -> None:
    """Kill a machine; what the sink has accepted by then must be on the other one."""
    lost.kill()
    # Before the other machine takes over, and asks PostgreSQL again.
    end = Log(Durable(other.folder / "data" / "log")).durable_end().position
    missing = set(destination.accepted(NAME)) - fsynced(other, end)
    assert not missing, f"{len(missing)} changes were delivered and are on one machine only"


def waiting(machine: Machine) -> set[Change]:
    return {(row["id"], row["n"]) for row in parked(machine, NAME)}


def run(
    pair: Pair, database: Database, destination: Destination, seed: int, *, kind: str,
    visible: str, takeovers: int,
) -> None:  # fmt: skip
    rng = random.Random(seed)
    pipeline = {
        "shape": "plain", "max_open_s": 2.0, "sink": destination.sink(NAME),
        "retry": {"attempts": 4, "first_s": 0.01, "max_s": 0.2},
    }  # fmt: skip
    machines = pair({NAME: pipeline}, takeover_after_s=6.0, state_every_s=0.5, visible=visible)

    def leader() -> Machine:
        # On a slow machine the winner may be deposed before its capture has started.
        return wait_for(lambda: next(filter(leads, machines), None), outputs, TAKEOVER_S)

    def outputs() -> str:
        return "\n".join(machine.output[-2000:] for machine in machines)

    leader()
    destination.prepare()
    with Steady(database, seed):
        for number in range(takeovers):
            time.sleep(rng.uniform(0, 4))
            lost = leader()
            if visible == "quorum":
                lose(lost, machines[1 - machines.index(lost)], destination)
            else:
                lost.kill()
            print(f"takeover {number}", flush=True)
            wait_for(lambda: next(filter(captures, machines), None), outputs, TAKEOVER_S)
            time.sleep(rng.uniform(0, 3))
            lost.start()
    last = leader()
    everything = set(database.query(COMMITTED))
    refused = {(row, n) for row, n in database.query(f"{COMMITTED} WHERE refused(id, g)")}
    [(flushed,)] = database.query("SELECT pg_current_wal_lsn()::text")
    database.execute("UPDATE counters SET note = note WHERE id = 1")

    def decided() -> bool:
        return everything <= set(destination.accepted(NAME)) | waiting(last)

    wait_for(partial(delivered, last, Lsn.parse(flushed)), last.status, CATCH_UP_S)
    wait_for(decided, last.status, CATCH_UP_S)
    found = destination.accepted(NAME)
    repeated = len(found) - len(set(found))
    parked_now = waiting(last)
    print(f"{kind}: {takeovers} takeovers, {len(everything)} changes, {len(parked_now)} parked, "
          f"{repeated} repeated")  # fmt: skip
    assert refused <= parked_now
    assert not refused & set(found)
    assert in_order(found)
    log = Log.open(last.folder / "data" / "log")
    assert log.end().end_lsn >= Lsn.parse(flushed)
    if kind in ONCE:
        # The last update changes no counter.
        assert repeated <= 1


@pytest.mark.parametrize("visible", ["durable", "quorum"])
@pytest.mark.parametrize("destination", ["postgres"], indirect=True)
@pytest.mark.timeout(900)
def test_pipelines_survive_their_machine(
    *,
    pair: Pair,
    victim_database: Database,
    destination: Destination,
    seed: int,
    request: pytest.FixtureRequest,
    visible: str,
) -> None:
    kind = request.node.callspec.params["destination"]
    run(
        pair, victim_database, destination, seed, kind=kind, visible=visible,
        takeovers=CI_TAKEOVERS,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("destination", "visible", "every"),
    [
        *((each, "durable", 50) for each in ("http", *ONCE)),
        *((each, "quorum", 10) for each in ("http", "postgres")),
    ],
    indirect=["destination"],
)
@pytest.mark.soak
def test_pipelines_survive_their_machine_for_long(
    *,
    pair: Pair,
    victim_database: Database,
    destination: Destination,
    seed: int,
    request: pytest.FixtureRequest,
    visible: str,
    every: int,
) -> None:
    kind = request.node.callspec.params["destination"]
    run(
        pair, victim_database, destination, seed, kind=kind, visible=visible,
        takeovers=soak.rounds(every=every),
    )  # fmt: skip
