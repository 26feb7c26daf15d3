"""A receiver that fails and refuses while processes are killed: each change is delivered or parked.

Rows have counters that only grow. The receiver answers some requests with 503, drops the connection
for others, and refuses certain changes for good. In the end each change was accepted or is parked,
no counter was ever accepted before a smaller one, and a retry delivers what is parked.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter, defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tailrace.parking import control
from tailrace.parking.listing import Listing
from tailrace.parking.parking import folder_of, store_of
from tailrace.parking.selection import Selection
from tailrace.testing import HttpReceiver, HttpRequest, HttpResponse
from tests.command import call
from tests.faults import soak
from tests.faults.path import System, kill, victims
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fix_postgres import Database

pytestmark = pytest.mark.long

CI_KILLS = 3
KEYS = 200
KINDS = ("worker", "driver", "jvm", "capture")
TABLES = f"""
CREATE TABLE counters (id int PRIMARY KEY, n int NOT NULL);
CREATE PUBLICATION tailrace FOR TABLE counters;
INSERT INTO counters SELECT g, 0 FROM generate_series(1, {KEYS}) g;
"""
Change = tuple[int, int]
"""A row's key and its counter."""


class Receiver(HttpReceiver):
    """Answers 10 % of requests with a transient failure, and refuses 0.5 % of changes for good."""

    def __init__(self, seed: int) -> None:
        super().__init__(self._answered)
        self._rng = random.Random(seed)
        self._seed = seed
        self._accepting = threading.Lock()
        self.accepted: dict[str, list[Change]] = defaultdict(list)
        """By path: the changes of each pipeline, in the order in which they were accepted."""
        self.healed = False

    def keep(self, request: HttpRequest) -> None:
        """Nothing: the answers are enough."""

    def refuses(self, change: Change) -> bool:
        return not self.healed and random.Random(f"{self._seed} {change}").random() < 0.005

    def _answered(self, request: HttpRequest) -> HttpResponse:
        row = json.loads(request.body)["after"]
        change = row["id"], row["n"]
        with self._accepting:
            chance = 1.0 if self.healed else self._rng.random()
            if chance < 0.02:
                return HttpResponse(status=0)
            if chance < 0.10:
                return HttpResponse(status=503)
            if self.refuses(change):
                return HttpResponse(status=422, body=b"no")
            self.accepted[request.path].append(change)
        return HttpResponse()


class Counting:
    """Increments counters until the end of the block."""

    def __init__(self, database: Database, seed: int) -> None:
        self._dsn = database.socket_dsn
        self._rng = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while not self._stop.wait(0.01):
                keys = self._rng.sample(range(1, KEYS + 1), self._rng.choice([1, 5, 20]))
                sql = "UPDATE counters SET n = n + 1 WHERE id = ANY(%s)"
                connection.execute(sql, [keys])

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@pytest.fixture
def receiver(seed: int) -> Iterator[Receiver]:
    with Receiver(seed) as made:
        yield made


@pytest.fixture
def system(victim_database: Database, receiver: Receiver, tmp_path: Path) -> Iterator[System]:
    sink = {"type": "http", "url": receiver.url, "allow_private": True}
    retry = {"attempts": 6, "first_s": 0.01, "max_s": 0.2}
    common: dict[str, Any] = {"max_open_s": 3, "retry": retry}
    pipelines = {
        "plain": {**common, "sink": {**sink, "path": "/plain"}},
        "sql": {**common, "where": "after.n >= 0", "sink": {**sink, "path": "/sql"}},
        "lanes": {**common, "lanes": 2, "sink": {**sink, "path": "/lanes"}},
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


def committed(system: System) -> set[Change]:
    """Every value that a counter has had."""
    rows = system.database.query("SELECT id, n FROM counters")
    return {(row, n) for row, last in rows for n in range(1, last + 1)}


def strike(system: System, rng: random.Random) -> str:
    """Kill a process; its kind."""
    kinds = list(KINDS)
    rng.shuffle(kinds)
    found = wait_for(lambda: victims(system.data))
    kind = next(kind for kind in kinds if found[kind])
    kill(rng.choice(found[kind]))
    print(f"kill {kind}", flush=True)
    return kind


def run(system: System, receiver: Receiver, seed: int, kills: int) -> None:
    rng = random.Random(seed)
    system.start()
    names = list(system.pipelines)
    wait_for(lambda: all(system.state(name) == "running" for name in names), system.output)
    with Counting(system.database, seed):
        time.sleep(rng.uniform(2, 4))
        for _ in range(kills):
            strike(system, rng)
            time.sleep(rng.uniform(3, 8))
    end = system.captured()
    everything = committed(system)

    def decided(name: str) -> bool:
        accepted = set(receiver.accepted[f"/{name}"])
        return system.reached(name, end) and everything <= accepted | parked(system, name)

    def nothing_parked(name: str) -> bool:
        return not parked(system, name)

    for name in names:
        wait_for(partial(decided, name), partial(system.progress, name))
        found = receiver.accepted[f"/{name}"]
        waiting = parked(system, name)
        assert in_order(found), name
        assert {change for change in everything if receiver.refuses(change)} <= waiting
        # What is parked was not accepted, but for answers that were lost with their process.
        repeated = sum(Counter(found).values()) - len(set(found))
        print(f"{name}: {len(everything)} changes, {len(waiting)} parked, {repeated} repeated")
        # Nothing of a key is accepted after a parked change of it.
        first: dict[int, int] = {}
        for row, n in waiting:
            first[row] = min(first.get(row, n), n)
        assert not [(row, n) for row, n in set(found) - waiting if n > first.get(row, n)], name
    receiver.healed = True
    for name in names:
        done = call("parked", "retry", name, "--all", "--config", system.folder / "tailrace.yml")
        assert done.returncode == 0, done.stderr
    for name in names:
        wait_for(partial(nothing_parked, name), partial(system.progress, name))
        found = receiver.accepted[f"/{name}"]
        assert everything <= set(found)
        assert in_order(found), name
    assert system.stop() == 0


@pytest.mark.timeout(600)
def test_every_change_is_delivered_or_parked(system: System, receiver: Receiver, seed: int) -> None:
    run(system, receiver, seed, CI_KILLS)


@pytest.mark.soak
def test_every_change_is_delivered_or_parked_for_long(
    system: System, receiver: Receiver, seed: int
) -> None:
    run(system, receiver, seed, soak.rounds(every=25))
