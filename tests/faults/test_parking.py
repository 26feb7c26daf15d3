"""Destinations that fail and refuse while processes are killed: each change is delivered or parked.

Rows have counters that only grow. Connections break, requests fail, servers die, and certain
changes are refused for good. In the end each change was accepted or is parked, no counter was ever
accepted before a smaller one, and a retry delivers what is parked.
"""

from __future__ import annotations

import json
import random
import threading
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import yaml

from tailrace.parking import control
from tailrace.parking.listing import Listing
from tailrace.parking.parking import folder_of, store_of
from tailrace.parking.selection import Selection
from tests.command import call
from tests.faults import soak
from tests.faults.destinations import DESTINATIONS
from tests.faults.path import System, kill, victims
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.faults.destination import Change, Destination
    from tests.fix_postgres import Database

pytestmark = pytest.mark.long

CI_CHANGES, CI_KEYS, CI_FAULTS = 5_000, 200, 4
SOAK_CHANGES, SOAK_KEYS = 200_000, 5_000
CATCH_UP_S = 3600
"""A webhook per change, three times 200,000, takes a busy machine many minutes."""
PIPELINES: dict[str, dict[str, Any]] = {
    "plain": {},
    "sql": {"where": "after.n >= 0"},
    "lanes": {"lanes": 2},
}
KINDS = ("worker", "driver", "jvm", "capture")
TABLES = """
CREATE TABLE counters (id int PRIMARY KEY, n int NOT NULL, note text NOT NULL);
CREATE FUNCTION refused(id int, n int) RETURNS boolean LANGUAGE sql IMMUTABLE
RETURN hashint8(id::bigint * 1000003 + n) % 200 = 0;
CREATE PUBLICATION tailrace FOR TABLE counters WITH (publish = 'update');
"""
INCREMENT = """
UPDATE counters SET
    n = n + 1, note = CASE WHEN refused(id, n + 1) THEN repeat('x', 4000) ELSE '' END
WHERE id = ANY(%s)
"""
COMMITTED = "SELECT id, g FROM counters CROSS JOIN LATERAL generate_series(1, n) g"


class Counting:
    """Increments counters in a thread. A context manager: it ends with a number of changes."""

    def __init__(self, database: Database, seed: int, *, changes: int, keys: int) -> None:
        self._dsn = database.socket_dsn
        self._rng = random.Random(seed)
        self._left = changes
        self._keys = keys
        self._thread = threading.Thread(target=self._run)
        with psycopg.connect(self._dsn) as connection:
            fill = "INSERT INTO counters SELECT g, 0, '' FROM generate_series(1, %s) g"
            connection.execute(fill, [keys])

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while self._left > 0:
                count = self._rng.choice([1, 5, 20, 50])
                keys = self._rng.sample(range(1, self._keys + 1), count)
                connection.execute(INCREMENT, [keys])
                self._left -= count
                time.sleep(0.01)

    def __enter__(self) -> Counting:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()


@contextmanager
def disturbing(destination: Destination, seed: int) -> Iterator[None]:
    """Let a destination fail for moments, until the end of the block."""
    rng, stop = random.Random(seed), threading.Event()

    def run() -> None:
        while not stop.wait(rng.uniform(0.2, 2)):
            destination.disturb()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.fixture
def destination(request: pytest.FixtureRequest, tmp_path: Path, seed: int) -> Iterator[Destination]:
    kind = request.param.partition("-")[0]
    if kind in {"redis", "rabbitmq", "pubsub", "kafka"}:
        request.getfixturevalue(f"{kind}_available")
    with DESTINATIONS[request.param](tmp_path, seed) as made:
        yield made


@pytest.fixture
def system(victim_database: Database, destination: Destination, tmp_path: Path) -> Iterator[System]:
    # A change that always fails for now may be alone in its lane, or in a replay.
    retry = {"attempts": 6, "first_s": 0.01, "max_s": 0.2, "alone_s": 1}
    pipelines = {
        name: {"max_open_s": 3, "retry": retry, "sink": destination.sink(name), **own}
        for name, own in PIPELINES.items()
    }
    made = System(victim_database, tmp_path, pipelines, tables=TABLES)
    yield made
    made.kill()


def parked(system: System, name: str) -> set[Change]:
    found = set()
    with Listing(store_of(folder_of(system.data, name))) as listing:
        for message in control.export(listing, Selection()):
            row = json.loads(message["payload"])["after"]
            found.add((row["id"], row["n"]))
    return found


def in_order(changes: list[Change]) -> bool:
    """Whether the counters of each row were first accepted in their order."""
    last: dict[int, int] = {}
    seen = set()
    for change in changes:
        row, n = change
        if change not in seen:
            seen.add(change)
            if n <= last.get(row, -1):
                return False
            last[row] = n
    return True


def strike(system: System, destination: Destination, rng: random.Random) -> str:
    """Kill a process, or the destination; what it was."""
    kinds = ["destination", *KINDS]
    rng.shuffle(kinds)
    found = wait_for(lambda: victims(system.data))
    for kind in kinds:
        if kind == "destination" and destination.crash():
            break
        if found.get(kind):
            kill(rng.choice(found[kind]))
            break
    print(f"kill {kind}", flush=True)
    return kind


def heal(system: System, destination: Destination) -> None:
    """Restart the system with settings with which nothing is refused."""
    assert system.stop() == 0
    destination.heal()
    config = system.folder / "tailrace.yml"
    settings = yaml.safe_load(config.read_text())
    for name, pipeline in settings["pipelines"].items():
        pipeline["sink"] = destination.sink(name, healed=True)
    config.write_text(yaml.safe_dump(settings))
    system.start()


def retry_all(system: System) -> None:
    """Order the pipelines to deliver everything that is parked."""
    for name in system.pipelines:
        done = call("parked", "retry", name, "--all", "--config", system.folder / "tailrace.yml")
        assert done.returncode == 0, done.stderr


def retried(system: System, name: str) -> bool:
    """Whether everything that was to be delivered again was tried."""
    with Listing(store_of(folder_of(system.data, name))) as listing:
        orders = listing.orders()
    return bool(orders) and not any(order.waiting for order in orders)


def running(system: System) -> None:
    """Wait until all pipelines run."""
    wait_for(
        lambda: all(system.state(name) == "running" for name in system.pipelines), system.output
    )


def check_decided(
    system: System, destination: Destination, name: str, everything: set[Change], faults: int
) -> None:
    """Each change was accepted or is parked, in order, and no more were repeated than promised."""
    refused = {(row, n) for row, n in system.database.query(f"{COMMITTED} WHERE refused(id, g)")}

    def decided() -> bool:
        return everything <= set(destination.accepted(name)) | parked(system, name)

    wait_for(decided, partial(system.progress, name), CATCH_UP_S)
    found, waiting = destination.accepted(name), parked(system, name)
    accepted = set(found)
    repeated = len(found) - len(accepted)
    print(f"{name}: {len(everything)} changes, {len(waiting)} parked, {repeated} repeated")
    assert refused <= waiting
    assert not refused & accepted
    assert in_order(found), name
    lanes = PIPELINES[name].get("lanes", 1)
    assert repeated <= destination.allowed_repeats(faults, lanes)
    # Nothing of a key is accepted after a parked change of it.
    first: dict[int, int] = {}
    for row, n in waiting:
        first[row] = min(first.get(row, n), n)
    assert not [(row, n) for row, n in accepted - waiting if n > first.get(row, n)], name


def run(
    system: System, destination: Destination, seed: int, *, changes: int, keys: int, faults: int
) -> None:
    rng = random.Random(seed)
    counting = Counting(system.database, seed, changes=changes, keys=keys)
    system.start()
    running(system)
    destination.prepare()
    with counting, disturbing(destination, seed):
        for _ in range(faults):
            time.sleep(rng.uniform(3, 8))
            strike(system, destination, rng)
    end = system.captured()
    everything = set(system.database.query(COMMITTED))
    assert len(everything) >= changes
    for name in system.pipelines:
        progress = partial(system.progress, name)
        wait_for(partial(system.reached, name, end), progress, CATCH_UP_S)
        check_decided(system, destination, name, everything, faults)
    retry_all(system)
    for name in system.pipelines:
        wait_for(partial(retried, system, name), partial(system.progress, name), CATCH_UP_S)
        check_decided(system, destination, name, everything, faults)
    heal(system, destination)
    running(system)
    retry_all(system)

    def nothing_parked(name: str) -> bool:
        return not parked(system, name)

    for name in system.pipelines:
        wait_for(partial(nothing_parked, name), partial(system.progress, name), CATCH_UP_S)
        found = destination.accepted(name)
        assert everything == set(found), name
        assert in_order(found), name
    assert system.stop() == 0


@pytest.mark.parametrize("destination", ["http", "postgres"], indirect=True)
@pytest.mark.timeout(600)
def test_every_change_is_delivered_or_parked(
    system: System, destination: Destination, seed: int
) -> None:
    run(system, destination, seed, changes=CI_CHANGES, keys=CI_KEYS, faults=CI_FAULTS)


@pytest.mark.parametrize("destination", DESTINATIONS, indirect=True)
@pytest.mark.soak
def test_every_change_is_delivered_or_parked_for_long(
    system: System, destination: Destination, seed: int
) -> None:
    faults = soak.rounds(every=50)
    run(system, destination, seed, changes=SOAK_CHANGES, keys=SOAK_KEYS, faults=faults)
