"""`takeover: auto`: a follower takes over when its leader is gone, and the old one follows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.testing.process import free_port
from tests.integration.replica.cluster import QUICK
from tests.integration.replica.test_processes import Machine
from tests.waiting import holds, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fix_postgres import Database


@pytest.fixture
def two(tmp_path: Path, database: Database) -> Iterator[tuple[Machine, Machine]]:
    """Two machines with one publication and slot; each follows or leads the other."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION tailrace FOR TABLE t")
    slot = database.name[-50:]
    database.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", slot)
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    settings = {**QUICK, "takeover": "auto", "takeover_after_s": 2.0, "mode": "sync"}

    def machine(command: str, name: str, own: str, other: str) -> Machine:
        replication = {**settings, "node": name, "listen": own, "followers": [other]}
        source = {"dsn": database.socket_dsn, "slot": slot}
        return Machine(command, tmp_path / name, source=source, replication=replication)

    made = machine("run", "one", *addresses), machine("follow", "two", *addresses[::-1])
    yield made
    for each in made:
        if each.alive:
            each.kill()


def test_a_follower_takes_over_and_the_old_leader_follows(
    two: tuple[Machine, Machine], database: Database
) -> None:
    """GIVEN a leader and its follower WHEN the leader is killed THEN the follower leads, and the
    old leader follows it when it comes back. Every row is in both logs, once."""
    one, other = two
    one.start()
    other.start()
    wait_for(lambda: one.ready() == 200, lambda: one.status().get("replication"))
    database.execute("INSERT INTO t SELECT generate_series(1, 10)")
    wait_for(lambda: other.rows() == 10)
    # Both are alive: nothing happens.
    holds(lambda: other.status()["replication"]["follower"]["connected"], 3.0)
    one.kill()
    database.execute("INSERT INTO t SELECT generate_series(11, 20)")
    wait_for(lambda: other.status().get("is_connected"), lambda: other.output)
    wait_for(lambda: other.rows() == 20, lambda: other.output)
    one.start()
    wait_for(lambda: one.status().get("replication", {}).get("follower"), lambda: one.output)
    database.execute("INSERT INTO t SELECT generate_series(21, 30)")
    wait_for(lambda: one.rows() == other.rows() == 30, lambda: one.output)
    wait_for(lambda: other.ready() == 200, other.status)
    slots = database.query(
        "SELECT slot_name::text FROM pg_replication_slots WHERE slot_type = 'logical'"
    )
    names = [name for (name,) in slots if name.startswith(database.name[-50:])]
    assert names == [f"{database.name[-50:]}_e1"]
