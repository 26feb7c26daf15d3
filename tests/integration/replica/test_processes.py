"""`tailrace run` with followers and `tailrace follow`, as processes with endpoints."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tailrace.log.changes import read_changes
from tailrace.log.reader import Log
from tailrace.testing.process import free_port
from tests import http
from tests.faults.path import Supervisor
from tests.integration.replica.cluster import QUICK
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fix_postgres import Database


class Machine(Supervisor):
    """A machine with settings of its own."""

    def __init__(self, command: str, folder: Path, **settings: Any) -> None:
        folder.mkdir()
        self.url = f"http://127.0.0.1:{free_port()}"
        file = folder / "tailrace.yml"
        content = {
            "log": {"path": "data/log"},
            "data": "data",
            "http": {"port": int(self.url.rpartition(":")[2])},
            **settings,
        }
        file.write_text(yaml.safe_dump(content))
        arguments = (file,) if command == "run" else ("-c", file)
        super().__init__(command, *arguments, folder=folder)

    def status(self) -> dict[str, Any]:
        try:
            body: dict[str, Any] = http.get(f"{self.url}/status").json()
        except Exception:
            return {}
        return body

    def ready(self) -> int:
        try:
            return http.get(f"{self.url}/ready").status_code
        except Exception:
            return 0

    def rows(self) -> int:
        log = Log.open(self.folder / "data" / "log")
        return sum(1 for change in read_changes(log, log.earliest()) if change.relation)


@pytest.fixture
def machines(tmp_path: Path, database: Database) -> Iterator[tuple[Machine, Machine]]:
    """A leader in mode sync, and its follower; neither is started."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION tailrace FOR TABLE t")
    slot = database.name[-63:]
    database.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", slot)
    address = f"127.0.0.1:{free_port()}"
    shared = {**QUICK, "key": "a secret of enough letters", "node": "leader"}
    leader = Machine(
        "run",
        tmp_path / "leader",
        source={"dsn": database.socket_dsn, "slot": slot},
        replication={**shared, "followers": [address], "mode": "sync", "visible": "quorum"},
    )
    follower = Machine(
        "follow", tmp_path / "follower", replication={**shared, "node": "copy", "listen": address}
    )
    yield leader, follower
    for each in (leader, follower):
        if each.alive:
            each.kill()


def test_a_leader_and_a_follower(machines: tuple[Machine, Machine], database: Database) -> None:
    """GIVEN mode sync THEN the leader is not ready without its follower; with it both are, and the
    endpoints say what they do. Processes may die."""
    leader, follower = machines
    leader.start()
    wait_for(lambda: leader.status().get("is_connected"), leader.output)
    database.execute("INSERT INTO t SELECT generate_series(1, 50)")
    replication = wait_for(lambda: leader.status().get("replication", {}).get("leader"))
    assert replication["in_quorum"] is False
    assert leader.ready() == 503
    follower.start()
    wait_for(lambda: leader.ready() == 200, lambda: leader.status()["replication"])
    wait_for(lambda: follower.ready() == 200, follower.output)
    wait_for(lambda: leader.rows() == follower.rows() == 50)
    [seen] = leader.status()["replication"]["leader"]["followers"]
    assert (seen["node"], seen["state"], seen["connected"]) == ("copy", "streaming", True)
    own = follower.status()["replication"]["follower"]
    assert (own["state"], own["leader_node"]) == ("following", "leader")
    metrics = http.get(f"{leader.url}/metrics").text
    assert 'tailrace_replica_connected{follower="' in metrics
    assert "tailrace_replication_in_quorum 1.0" in metrics
    assert "tailrace_follower_connected 1.0" in http.get(f"{follower.url}/metrics").text

    for machine, name in ((leader, "replicate"), (follower, "follow")):
        os.kill(machine.status()["processes"][name]["pid"], signal.SIGKILL)
        database.execute("INSERT INTO t SELECT max(id) + 1 FROM t")
    wait_for(lambda: leader.rows() == follower.rows() == 52, leader.output)
    for machine in machines:
        machine.stop()
        assert machine.wait() == 0
