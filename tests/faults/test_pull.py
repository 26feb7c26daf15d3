"""Consumers that fail while processes are killed: each change enters the store and is handled once.

Rows have counters that only grow. Consumers reject some messages, and forget others, which come
again after a timeout. In the end each change was received, no counter was first received before a
smaller one, and the store counts one acknowledgement per change.
"""

from __future__ import annotations

import random
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import httpx
import psycopg
import pytest

from tailrace.sinks.pull.database import store_of
from tailrace.sinks.pull.listing import Listing
from tests.faults import soak
from tests.faults.path import System, kill, running, victims
from tests.waiting import LONG_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fix_postgres import Database

pytestmark = pytest.mark.long

CI_KILLS = 4
KEYS = 50
CARELESS = 1000
"""Messages that consumers reject and forget some of, before they handle the rest."""
TOKEN = "consumer-0123456789"
TABLES = f"""
CREATE TABLE counters (id int PRIMARY KEY, n int NOT NULL);
CREATE PUBLICATION tailrace FOR TABLE counters;
INSERT INTO counters SELECT g, 0 FROM generate_series(1, {KEYS}) g;
"""
Change = tuple[int, int]
"""A row's key and its counter."""


class Consumers:
    """Threads that receive from a pipeline until the end of the block."""

    def __init__(self, port: int, name: str, seed: int, count: int = 2) -> None:
        self.received: list[Change] = []
        """What was received, in that order, again and again."""
        self.careful = False
        """Whether they acknowledge everything."""
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
        with self._receiving:
            rows = (each["data"]["after"] for each in messages)
            self.received += [(row["id"], row["n"]) for row in rows]
        done, failed = [], []
        for message in messages:
            chance = 1.0 if self.careful else rng.random()
            if chance < 0.03:
                failed.append(message["ack_id"])
            elif chance > 0.04:
                done.append(message["ack_id"])
        for action, ids in (("ack", done), ("nack", failed)):
            if ids:
                client.post(f"{self._base}/{action}", json={"ack_ids": ids})


class Counting:
    """Increments counters until the end of the block."""

    def __init__(self, database: Database, seed: int) -> None:
        self._dsn = database.socket_dsn
        self._rng = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while not self._stop.wait(0.02):
                keys = self._rng.sample(range(1, KEYS + 1), self._rng.choice([1, 5, 20]))
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
    common: dict[str, Any] = {"max_open_s": 3, "encoding": "json", "sink": sink}
    pipelines = {
        "plain": common,
        "lanes": {**common, "lanes": 2},
        "full": {**common, "sink": {**sink, "max_bytes": 20_000, "max_message_bytes": 10_000}},
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


def run(system: System, seed: int, kills: int) -> None:
    rng = random.Random(seed)
    system.start()
    names = list(system.pipelines)
    wait_for(lambda: all(system.state(name) == "running" for name in names), system.output)
    consumers = {name: Consumers(system.port, name, seed) for name in names}
    with consumers["plain"], consumers["lanes"], consumers["full"]:
        with Counting(system.database, seed):
            time.sleep(rng.uniform(1, 3))
            for _ in range(kills):
                strike(system, rng)
                time.sleep(rng.uniform(3, 6))
        end = system.captured()
        for name, each in consumers.items():
            # Some of them must have been careless with.
            wait_for(partial(_received, each, CARELESS), partial(system.progress, name))
            each.careful = True

        def emptied(name: str) -> bool:
            with Listing(store_of(system.data, name)) as listing:
                return system.reached(name, end) and not listing.totals().messages

        for name in names:
            wait_for(partial(emptied, name), partial(system.progress, name))
    rows = system.database.query("SELECT id, n FROM counters")
    everything = {(row, n) for row, last in rows for n in range(1, last + 1)}
    for name in names:
        found = consumers[name].received
        changes = {(row, n) for row, n in found if n}
        assert changes == everything, name
        assert in_order(found), name
        with Listing(store_of(system.data, name)) as listing:
            totals = listing.totals()
        assert totals.acknowledged == len(set(found)), name
        assert totals.redelivered > 0, name
        print(f"{name}: {len(changes)} changes, {totals.redelivered} redelivered")
    assert system.stop() == 0


def _received(consumers: Consumers, count: int) -> bool:
    return len(consumers.received) >= count


@pytest.mark.timeout(900)
def test_every_change_is_handled_once(system: System, seed: int) -> None:
    run(system, seed, CI_KILLS)


@pytest.mark.soak
def test_every_change_is_handled_once_for_long(system: System, seed: int) -> None:
    run(system, seed, soak.rounds(every=25))
