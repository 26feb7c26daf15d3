"""Mirrors of a database under load equal the database whenever the load stops.

Writers insert, update, delete, change keys, truncate, roll back, and transfer money between
accounts. Backfills and snapshots run repeatedly, and mirrors are killed at random. A reader of a
mirror never sees half a transfer.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import httpx
import pytest

from tests import http
from tests.faults import soak
from tests.faults.load import KEYS, Load
from tests.faults.mirrors import Auditor, Copy, PostgresCopy, Rows, SqliteCopy
from tests.faults.path import System, serving
from tests.faults.writing import Writing
from tests.fix_postgres import Database
from tests.waiting import LONG_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import psycopg

    from tailrace.testing import EmbeddedNats, EmbeddedPostgres

pytestmark = pytest.mark.long

CI_ROUNDS = 4
ACCOUNTS = 200
TOTAL = ACCOUNTS * 1000
TABLES = {**KEYS, "bank": ("id",)}
BANK = f"""
CREATE TABLE bank (id int PRIMARY KEY, balance bigint NOT NULL);
INSERT INTO bank SELECT g, 1000 FROM generate_series(1, {ACCOUNTS}) g;
ALTER PUBLICATION tailrace ADD TABLE bank;
"""


class Transfers(Writing):
    """Transfers money between accounts."""

    writers = 2

    def turns(
        self, connection: psycopg.Connection, writer: int, rng: random.Random
    ) -> Iterator[float]:
        while True:
            # In key order, so that two transfers do not deadlock.
            one, other = sorted(rng.sample(range(1, ACCOUNTS + 1), 2))
            amount = rng.randint(-50, 50)
            with connection.transaction():
                for account, change in ((one, -amount), (other, amount)):
                    connection.execute(
                        "UPDATE bank SET balance = balance + %s WHERE id = %s", (change, account)
                    )
            yield rng.random() * 0.05


@pytest.fixture
def system(victim_database: Database, server: EmbeddedNats, tmp_path: Path) -> Iterator[System]:
    stream = {"name": "CDC", "subjects": ["cdc.>"], "atomic": True}
    sink = {"type": "nats", "url": server.url, "stream": stream, "atomic": "transaction"}
    pipeline = {
        "shape": "bridge", "snapshots": {}, "sink": sink, "backfill": {"page_rows": 500},
    }  # fmt: skip
    made = System(victim_database, tmp_path, {"test": pipeline})
    victim_database.execute(BANK)
    yield made
    made.kill()


@pytest.fixture
def copies(
    system: System, server: EmbeddedNats, victim: EmbeddedPostgres, tmp_path: Path
) -> Iterator[list[Copy]]:
    name = victim.create_database("copy")
    other = Database(name=name, server=victim)
    made: list[Copy] = [
        SqliteCopy(server.url, list(TABLES), tmp_path),
        PostgresCopy(server.url, list(TABLES), tmp_path, other),
    ]
    yield made
    for copy in made:
        copy.kill()
    victim.drop_database(name)


def rounds(system: System, copies: list[Copy], seed: int, count: int) -> None:
    rng = random.Random(seed)
    system.start()
    serving(system)
    for copy in copies:
        copy.start()
    auditor = Auditor(copies, TOTAL)
    done: list[str] = []
    try:
        for number in range(count):
            with (
                Load(system.database, seed=seed + number),
                Transfers(system.database, seed=seed - number),
            ):
                for _ in range(3):
                    time.sleep(rng.uniform(0.5, 2.5))
                    done.append(_disturb(system, copies, rng))
                    print(f"round {number}: {done[-1]}", flush=True)
            system.settled()
            for copy in copies:
                _equal(system, copy)
            auditor.check()
    finally:
        auditor.stop()
    auditor.check()
    assert auditor.audits > 0
    print(f"{count} rounds, {', '.join(done)}; {auditor.audits} audits")


def _disturb(system: System, copies: list[Copy], rng: random.Random) -> str:
    """Kill a mirror, start it from scratch, or request a backfill."""
    match rng.randrange(4):
        case 0 | 1:
            copy, fresh = rng.choice(copies), rng.random() < 0.3
            copy.check()
            copy.kill()
            copy.start(fresh=fresh)
            return f"{'new' if fresh else 'killed'} {copy.target.partition(':')[0]}"
        case _:
            table = rng.choice(list(TABLES))
            request = {"pipeline": "test", "table": table}
            deadline = time.monotonic() + LONG_S
            while True:
                try:
                    url = f"http://127.0.0.1:{system.port}/backfills"
                    headers = http.authorization(system.data)
                    http.post(url, json=request, headers=headers).raise_for_status()
                except (httpx.TransportError, FileNotFoundError):
                    assert time.monotonic() < deadline
                    time.sleep(0.2)
                else:
                    return f"backfill of {table}"


def _equal(system: System, copy: Copy) -> None:
    """Wait until a copy has exactly the rows of the source."""
    for table, key in TABLES.items():
        order = ", ".join(key)
        expected: Rows = [
            row
            for (row,) in system.database.query(
                f"SELECT row_to_json(t) FROM {table} t ORDER BY {order}"
            )
        ]
        deadline = time.monotonic() + LONG_S
        while (found := _rows(copy, table, key)) != expected:
            copy.check()
            assert time.monotonic() < deadline, _difference(copy, table, expected, found)
            time.sleep(0.1)


def _rows(copy: Copy, table: str, key: tuple[str, ...]) -> Rows | None:
    try:
        return copy.rows(table, key)
    except Exception as error:
        if "no such table" in str(error) or "does not exist" in str(error):
            return None
        raise


def _difference(copy: Copy, table: str, expected: Rows, found: Rows | None) -> str:
    missing = [row for row in expected if row not in (found or [])][:3]
    extra = [row for row in found or [] if row not in expected][:3]
    count = f"{len(found or [])} of {len(expected)}"
    return f"{copy.target} {table}: {count}; missing {missing}, extra {extra}"


@pytest.mark.timeout(900)
def test_copies_are_equal(system: System, copies: list[Copy], seed: int) -> None:
    rounds(system, copies, seed, CI_ROUNDS)
    assert system.stop() == 0


@pytest.mark.soak
def test_copies_are_equal_for_long(system: System, copies: list[Copy], seed: int) -> None:
    rounds(system, copies, seed, soak.rounds(every=50))
    assert system.stop() == 0
