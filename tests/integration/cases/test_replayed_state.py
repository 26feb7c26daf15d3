"""The state checker over mixed workloads: what was captured, replayed, is what SELECT says."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import psycopg

from tailrace.change import Op
from tests.integration.cases.replay import Replay
from tests.integration.cases.running import running, settle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.fix_capture import Captured
    from tests.fix_postgres import Database

    Capturing = Callable[..., Captured]

# Each table has another way of being identified, and a value that is stored out of line.
SCHEMA = """
CREATE TABLE plain (id int PRIMARY KEY, big text, n int);
CREATE TABLE whole (id int, big text, n int);
ALTER TABLE whole REPLICA IDENTITY FULL;
CREATE TABLE indexed (id int NOT NULL UNIQUE, big text, n int);
ALTER TABLE indexed REPLICA IDENTITY USING INDEX indexed_id_key;
CREATE TABLE parted (id int PRIMARY KEY, big text, n int) PARTITION BY RANGE (id);
CREATE TABLE parted_low PARTITION OF parted FOR VALUES FROM (MINVALUE) TO (50);
CREATE TABLE parted_high PARTITION OF parted FOR VALUES FROM (50) TO (MAXVALUE);
ALTER TABLE plain ALTER big SET STORAGE EXTERNAL;
ALTER TABLE whole ALTER big SET STORAGE EXTERNAL;
ALTER TABLE indexed ALTER big SET STORAGE EXTERNAL;
CREATE PUBLICATION tailrace FOR ALL TABLES WITH (publish_via_partition_root = true);
"""
TABLES = ["plain", "whole", "indexed", "parted"]


class Workload:
    """Random statements over a hundred keys, so that they meet often."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def statement(self) -> str:
        pick = self._random
        table, key, other = pick.choice(TABLES), pick.randrange(100), pick.randrange(100)
        low = pick.randrange(100)
        value = pick.choice(["NULL", "''", f"'v{key}'", f"repeat('{key % 10}', {2000 + key * 50})"])
        return pick.choices(
            [
                f"INSERT INTO {table} VALUES ({key}, {value}, {other})",
                f"INSERT INTO {table} SELECT {low} + i, {value}, 0 FROM generate_series(0, 9) i",
                f"UPDATE {table} SET n = coalesce(n, 0) + 1 WHERE id BETWEEN {low} AND {low + 5}",
                f"UPDATE {table} SET big = {value} WHERE id = {key}",
                f"UPDATE {table} SET id = {other}, n = NULL WHERE id = {key}",
                f"DELETE FROM {table} WHERE id BETWEEN {low} AND {low + 3}",
                f"TRUNCATE {table}",
            ],
            weights=[6, 4, 6, 4, 5, 4, 0.3],
        )[0]

    def transaction(self) -> Iterator[str]:
        """Some statements, each in a savepoint of its own, and how it ends."""
        for _ in range(self._random.choice([1, 1, 2, 5, 12])):
            yield "SAVEPOINT s"
            yield self.statement()
            yield self._random.choice(["RELEASE s", "RELEASE s", "ROLLBACK TO s"])
        yield self._random.choice(["COMMIT", "COMMIT", "COMMIT", "ROLLBACK"])


def run(session: psycopg.Connection, statements: Iterator[str]) -> None:
    """One transaction; a statement that breaks a constraint is taken back."""
    session.execute("BEGIN")
    for statement in statements:
        try:
            session.execute(statement.encode())
        except psycopg.errors.IntegrityError:
            session.execute("ROLLBACK TO s")


def test_replayed_changes_are_the_tables(db: Database, capture: Capturing, seed: int) -> None:
    """GIVEN random transactions, WHEN they are captured in several sessions, into small entries,
    THEN the replayed tables equal the real ones at every stop."""
    db.execute(SCHEMA)
    captured = capture(db, log={"flush_bytes": 8192, "segment_bytes": 65536})
    workload, replay = Workload(seed), Replay()
    with db.connect() as session:
        for _ in range(5):
            for _ in range(40):
                run(session, workload.transaction())
            replay.apply(captured.catch_up())
            replay.check(db)
    assert {relation.name for relation in replay.relations.values()} == set(TABLES)


def test_replayed_changes_of_concurrent_writers_are_the_tables(
    db: Database, capture: Capturing, seed: int
) -> None:
    """GIVEN transactions that are open at the same time, on tables of their own,
    WHEN capture runs meanwhile, THEN the log holds the tables, in one order."""
    db.execute(SCHEMA)
    captured = capture(db, log={"flush_bytes": 8192})
    captured.catch_up()
    pick, workload = random.Random(seed), Workload(seed)
    sessions = {table: db.connect() for table in TABLES}
    with running(captured):
        for session in sessions.values():
            session.execute("BEGIN")
        for _ in range(300):
            statement = workload.statement()
            session = sessions[next(table for table in TABLES if f" {table}" in statement)]
            session.execute("SAVEPOINT s")
            try:
                session.execute(statement.encode())
            except psycopg.errors.IntegrityError:
                session.execute("ROLLBACK TO s")
            if pick.random() < 0.2:
                session.execute(pick.choice([b"COMMIT", b"COMMIT", b"ROLLBACK"]))
                session.execute("BEGIN")
        for session in sessions.values():
            session.execute("COMMIT")
            session.close()
        settle(captured)
    changes = captured.changes()
    positions = [change.position for change in changes]
    assert positions == sorted(set(positions))
    Replay().apply([change for change in changes if change.op is not Op.MESSAGE]).check(db)
