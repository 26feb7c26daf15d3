"""A cluster that fails and refuses while processes are killed: documents become the rows.

Rows with large values are inserted, updated, moved to other keys and deleted. A gateway fails some
requests before the cluster has stored them, and denies some items after that. The mapping refuses
some rows, which are parked with everything that follows them. Once the mapping takes every row and
what is parked was retried, the documents are the rows.
"""

from __future__ import annotations

import json
import random
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tailrace.parking import control
from tailrace.parking.listing import Listing
from tailrace.parking.parking import folder_of, store_of
from tailrace.parking.selection import Selection
from tailrace.testing import EmbeddedOpenSearch, HttpRequest, HttpResponse
from tests.command import call
from tests.faults import soak
from tests.faults.path import System, kill, victims
from tests.integration.search.bench import Gateway
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fix_postgres import Database

pytestmark = pytest.mark.long

CI_KILLS = 2
KEYS = 100
KINDS = ("worker", "driver", "jvm", "capture")
TABLES = """
CREATE TABLE items (id int PRIMARY KEY, n int NOT NULL, label text NOT NULL, body text NOT NULL);
CREATE PUBLICATION tailrace FOR TABLE items;
"""
PIPELINES: dict[str, dict[str, Any]] = {
    "plain": {},
    "sql": {"where": "op <> 'truncate'"},
    "lanes": {"lanes": 2},
}
BODY = "(SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 200))"
WRITES = {
    f"INSERT INTO items SELECT %(id)s, 0, '1', {BODY} ON CONFLICT DO NOTHING": 3,
    "UPDATE items SET n = n + 1 WHERE id BETWEEN %(id)s AND %(id)s + 5": 6,
    f"UPDATE items SET n = n + 1, body = {BODY} WHERE id = %(id)s": 1,
    "DELETE FROM items WHERE id = %(id)s": 1,
    "UPDATE items SET id = %(to)s WHERE id = %(id)s"
    " AND NOT EXISTS (SELECT FROM items WHERE id = %(to)s)": 1,
}
"""Statements, and how often they are chosen."""
SPOIL = "UPDATE items SET label = 'no number' WHERE id = %(id)s"
REPAIR = "UPDATE items SET label = '2' WHERE id = %(id)s"


class Cluster(Gateway):
    """Fails 5 % of bulk requests, and denies items of 5 % of the others after storing them."""

    def __init__(self, server: EmbeddedOpenSearch, seed: int) -> None:
        super().__init__(server)
        self._rng = random.Random(seed)
        self.healed = False

    def keep(self, request: HttpRequest) -> None:
        """Nothing: the documents are enough."""

    def instead(self, request: HttpRequest) -> HttpResponse | None:
        if self.healed or not request.path.startswith("/_bulk") or self._rng.random() > 0.05:
            return None
        return HttpResponse(status=self._rng.choice([0, 429, 503]))

    def changed(self, request: HttpRequest, body: bytes) -> bytes:
        if self.healed or not request.path.startswith("/_bulk") or self._rng.random() > 0.05:
            return body
        found = json.loads(body)
        found["errors"] = True
        for item in found.get("items", ()):
            (kind,) = item
            if self._rng.random() < 0.3 and item[kind]["status"] < 300:
                item[kind] = {"status": 503, "error": {"type": "denied", "reason": "by the test"}}
        return json.dumps(found).encode()


class Writing:
    """Changes rows until the end of the block."""

    def __init__(self, database: Database, seed: int) -> None:
        self._dsn = database.socket_dsn
        self._rng = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while not self._stop.wait(0.01):
                (statement,) = self._rng.choices(list(WRITES), list(WRITES.values()))
                chance = self._rng.random()
                statement = SPOIL if chance < 0.01 else REPAIR if chance < 0.02 else statement
                key, to = (self._rng.randint(1, KEYS) for _ in range(2))
                connection.execute(statement, {"id": key, "to": to})

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@pytest.fixture
def cluster(opensearch_server: EmbeddedOpenSearch, seed: int) -> Iterator[Cluster]:
    with Cluster(opensearch_server, seed) as made:
        yield made


@pytest.fixture
def system(victim_database: Database, cluster: Cluster, tmp_path: Path) -> Iterator[System]:
    retry = {"attempts": 6, "first_s": 0.01, "max_s": 0.2}
    common: dict[str, Any] = {"max_open_s": 3, "retry": retry, "shape": "row", "encoding": "json"}
    pipelines = {}
    for name, keys in PIPELINES.items():
        index = index_of(victim_database, name)
        mapping = {"mappings": {"properties": {"label": {"type": "integer"}}}}
        cluster.server.call("PUT", f"/{index}", mapping)
        sink: dict[str, Any] = {"type": "opensearch", "url": cluster.url, "index": index}
        sink |= {"histories": f"{victim_database.name}-histories", "batch_rows": 20}
        pipelines[name] = {**common, **keys, "sink": sink}
    made = System(victim_database, tmp_path, pipelines, tables=TABLES)
    yield made
    made.kill()


def index_of(database: Database, name: str) -> str:
    return f"{database.name}-{name}"


def parked(system: System, name: str) -> list[dict[str, Any]]:
    with Listing(store_of(folder_of(system.data, name))) as listing:
        return list(control.export(listing, Selection()))


def run(system: System, cluster: Cluster, seed: int, kills: int) -> None:
    rng = random.Random(seed)
    system.start()
    names = list(system.pipelines)
    wait_for(lambda: all(system.state(name) == "running" for name in names), system.output)
    with Writing(system.database, seed):
        time.sleep(rng.uniform(3, 5))
        for _ in range(kills):
            found = wait_for(lambda: victims(system.data))
            kind = rng.choice([kind for kind in KINDS if found[kind]])
            print(f"kill {kind}", flush=True)
            kill(rng.choice(found[kind]))
            time.sleep(rng.uniform(3, 8))
    end = system.captured()
    found_rows = system.database.query("SELECT id::text, row_to_json(i)::text FROM items i")
    rows = {key: json.loads(row) for key, row in found_rows}

    def documents(name: str) -> dict[str, Any]:
        return cluster.server.documents(index_of(system.database, name))

    def nothing_parked(name: str) -> bool:
        return not parked(system, name)

    def settled(name: str) -> bool:
        """Whether every row without parked messages is a document. They are listed when the next
        micro-batch is planned."""
        held = {each["key"] for each in parked(system, name)}
        current = documents(name)
        return all(current.get(key) == row for key, row in rows.items() if key not in held)

    for name in names:
        wait_for(partial(system.reached, name, end), partial(system.progress, name))
        wait_for(partial(settled, name), partial(system.progress, name))
        waiting = parked(system, name)
        codes = {each["last_error"]["code"] for each in waiting}
        assert codes <= {"HTTP_400", "HELD", "HTTP_503", "HTTP_429", "NO_ANSWER"}, codes
        print(f"{name}: {len(rows)} rows, {len(waiting)} messages parked")
    cluster.healed = True
    for name in names:
        lenient = {"properties": {"label": {"type": "integer", "ignore_malformed": True}}}
        index = index_of(system.database, name)
        assert cluster.server.call("PUT", f"/{index}/_mapping", lenient)["acknowledged"]
        done = call("parked", "retry", name, "--all", "--config", system.folder / "tailrace.yml")
        assert done.returncode == 0, done.stderr
    for name in names:
        wait_for(partial(nothing_parked, name), partial(system.progress, name))
        assert documents(name) == rows
    assert system.stop() == 0


@pytest.mark.timeout(600)
def test_documents_become_the_rows(system: System, cluster: Cluster, seed: int) -> None:
    run(system, cluster, seed, CI_KILLS)


@pytest.mark.soak
def test_documents_become_the_rows_for_long(system: System, cluster: Cluster, seed: int) -> None:
    run(system, cluster, seed, soak.rounds(every=25))
