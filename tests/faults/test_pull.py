"""Consumers that fail while processes are killed: each change enters the store and is handled once.

Rows have counters that only grow. Consumers reject some messages, and forget others, which come
again after a timeout. Those of one pipeline reject certain messages always, until these are
exhausted and fill its small store with what waits for them. In the end, after a retry of what is
exhausted, each change was received, no counter was first received before a smaller one, and the
store counts one acknowledgement per change.
"""

from __future__ import annotations

import random
import threading
import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import httpx
import psycopg
import pytest

from tailrace.sinks.pull.database import EXHAUSTED as EXHAUSTED_STATE
from tailrace.sinks.pull.database import store_of
from tailrace.sinks.pull.listing import Listing
from tests.command import call
from tests.faults import soak
from tests.faults.path import System, kill, running, victims
from tests.waiting import LONG_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tailrace.position import Position
    from tests.fix_postgres import Database

pytestmark = pytest.mark.long

CI_KILLS = 4
CI_KEYS, SOAK_KEYS = 500, 5000
CARELESS = 1000
"""Messages that consumers reject and forget some of, before they handle the rest."""
CATCH_UP_S = 3600
"""A small store takes what follows in small steps."""
TOKEN = "consumer-0123456789"
EXHAUSTED = "exhausted"
"""The pipeline whose consumers never handle some messages."""
TABLES = """
CREATE TABLE counters (id int PRIMARY KEY, n int NOT NULL);
CREATE PUBLICATION tailrace FOR TABLE counters;
"""
Change = tuple[int, int]
"""A row's key and its counter."""


class Consumers:
    """Threads that receive from a pipeline until the end of the block."""

    def __init__(self, port: int, name: str, seed: int, count: int = 2) -> None:
        self.received: list[Change] = []
        """What was received, in that order, again and again."""
        self.careful = False
        """Whether they acknowledge everything, except for what they never handle."""
        self.picky = name == EXHAUSTED
        """Whether there is something that they never handle."""
        self._base = f"http://127.0.0.1:{port}/v1/pull/{name}"
        self._receiving = threading.Lock()
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(random.Random(f"{seed} {name} {number}"),))
            for number in range(count)
        ]

    def __enter__(self) -> Consumers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, rng: random.Random) -> None:
        headers = {"authorization": f"Bearer {TOKEN}"}
        with httpx.Client(headers=headers, timeout=LONG_S) as client:
            while not self._stop.is_set():
                try:
                    self._work(client, rng)
                except httpx.TransportError:
                    # The server was killed, or has not started.
                    self._stop.wait(0.2)

    def _work(self, client: httpx.Client, rng: random.Random) -> None:
        body = {"batch_size": rng.choice([1, 10, 100]), "wait_ms": 1000}
        messages = client.post(f"{self._base}/receive", json=body).json().get("messages", [])
        rows = [each["data"]["after"] for each in messages]
        changes = [(row["id"], row["n"]) for row in rows]
        with self._receiving:
            self.received += changes
        done, failed = [], []
        for message, (row, n) in zip(messages, changes, strict=True):
            chance = 1.0 if self.careful else rng.random()
            if chance < 0.03 or (self.picky and (row * 7 + n) % 100 == 0):
                failed.append(message["ack_id"])
            elif chance > 0.04:
                done.append(message["ack_id"])
        for action, ids in (("ack", done), ("nack", failed)):
            if ids:
                client.post(f"{self._base}/{action}", json={"ack_ids": ids})


class Counting:
    """Increments counters until the end of the block."""

    def __init__(self, database: Database, seed: int, keys: int) -> None:
        self._dsn = database.socket_dsn
        self._rng = random.Random(seed)
        self._keys = keys
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            fill = "INSERT INTO counters SELECT g, 0 FROM generate_series(1, %s) g"
            connection.execute(fill, [self._keys])
            while not self._stop.wait(0.02):
                keys = self._rng.sample(range(1, self._keys + 1), self._rng.choice([1, 5, 20]))
                sql = "UPDATE counters SET n = n + 1 WHERE id = ANY(%s)"
                connection.execute(sql, [keys])

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@pytest.fixture
def system(victim_database: Database, tmp_path: Path) -> Iterator[System]:
    sink = {"type": "pull", "tokens": {"test": TOKEN}, "visibility_s": 2, "max_deliveries": 0}
    small = {"max_bytes": 20_000, "max_message_bytes": 10_000}
    common: dict[str, Any] = {"max_open_s": 3, "encoding": "json", "sink": sink}
    pipelines = {
        "plain": common,
        "lanes": {**common, "lanes": 2},
        "full": {**common, "sink": {**sink, **small}},
        EXHAUSTED: {**common, "sink": {**sink, **small, "max_deliveries": 3}},
    }
    made = System(victim_database, tmp_path, pipelines, tables=TABLES)
    yield made
    made.kill()


def in_order(changes: list[Change]) -> bool:
    """Whether the counters of each row were first received in their order."""
    last: dict[int, int] = {}
    for row, n in dict.fromkeys(changes):
        if n <= last.get(row, -1):
            return False
        last[row] = n
    return True


def strike(system: System, rng: random.Random) -> None:
    """Kill a process: of the pipelines, of capture, or that of the consumers' server."""

    def found() -> dict[str, list[int]]:
        server = running(system.data, "serve")
        return {**victims(system.data), "serve": [server] if server is not None else []}

    kind = rng.choice(["serve", "worker", "driver", "capture"])
    pids = wait_for(lambda: found().get(kind), system.output)
    kill(rng.choice(pids))
    print(f"kill {kind}", flush=True)


def run(system: System, seed: int, *, kills: int, keys: int) -> None:
    rng = random.Random(seed)
    system.start()
    names = list(system.pipelines)
    wait_for(lambda: all(system.state(name) == "running" for name in names), system.output)
    consumers = {name: Consumers(system.port, name, seed) for name in names}
    with ExitStack() as stack:
        for each in consumers.values():
            stack.enter_context(each)
        with Counting(system.database, seed, keys):
            time.sleep(rng.uniform(1, 3))
            for _ in range(kills):
                strike(system, rng)
                time.sleep(rng.uniform(3, 6))
        end = system.captured()
        for name, each in consumers.items():
            # Some of them must have been careless with.
            wait_for(partial(_received, each, CARELESS), partial(system.progress, name))
            each.careful = True
        for name in names:
            handled = partial(_handled, system, name, end)
            wait_for(handled, partial(system.progress, name), CATCH_UP_S)
        retry_exhausted(system)
        consumers[EXHAUSTED].picky = False
        wait_for(partial(_emptied, system, EXHAUSTED), partial(system.progress, EXHAUSTED))
    rows = system.database.query("SELECT id, n FROM counters")
    everything = {(row, n) for row, last in rows for n in range(last + 1)}
    for name in names:
        check(system, name, consumers[name].received, everything)
    assert system.stop() == 0


def check(system: System, name: str, found: list[Change], everything: set[Change]) -> None:
    """Each change was received, those of a key in order, and was acknowledged once."""
    assert set(found) == everything, name
    assert in_order(found), name
    with Listing(store_of(system.data, name)) as listing:
        totals = listing.totals()
    assert totals.acknowledged == len(everything), name
    assert totals.redelivered > 0, name
    print(f"{name}: {len(everything)} changes, {totals.redelivered} redelivered")


def retry_exhausted(system: System) -> None:
    """Have all exhausted messages delivered again. There are some."""
    with Listing(store_of(system.data, EXHAUSTED)) as listing:
        totals = listing.totals()
    print(f"{totals.exhausted} exhausted, {totals.messages} in the store", flush=True)
    assert 0 < totals.exhausted < totals.messages
    config = system.folder / "tailrace.yml"
    done = call("pull", "retry", EXHAUSTED, "--all", "--config", config)
    assert done.returncode == 0, done.stderr


def _received(consumers: Consumers, count: int) -> bool:
    return len(consumers.received) >= count


def _handled(system: System, name: str, end: Position) -> bool:
    """Whether consumers have handled everything that they can: what is left waits for exhausted
    messages."""
    with Listing(store_of(system.data, name)) as listing:
        query = "SELECT count(*) FROM messages WHERE first AND state <> ?"
        (left,) = listing.connection.execute(query, (EXHAUSTED_STATE,)).fetchone()
    return system.reached(name, end) and not left


def _emptied(system: System, name: str) -> bool:
    with Listing(store_of(system.data, name)) as listing:
        return not listing.totals().messages


@pytest.mark.timeout(900)
def test_every_change_is_handled_once(system: System, seed: int) -> None:
    run(system, seed, kills=CI_KILLS, keys=CI_KEYS)


@pytest.mark.soak
def test_every_change_is_handled_once_for_long(system: System, seed: int) -> None:
    run(system, seed, kills=soak.rounds(every=25), keys=SOAK_KEYS)
