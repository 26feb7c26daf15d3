"""Two machines with the same pipelines, and what tests ask of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tailrace.parking import control
from tailrace.parking.listing import Listing
from tailrace.parking.parking import folder_of, store_of
from tailrace.parking.selection import Selection
from tailrace.testing.process import free_port
from tests.integration.replica.cluster import QUICK
from tests.integration.replica.test_processes import Machine

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fix_postgres import Database


TABLES = "CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION tailrace FOR TABLE t;"


class Pair:
    """Two machines with the same pipelines; the second takes over by itself."""

    def __init__(self, folder: Path, database: Database, tables: str = TABLES) -> None:
        self._folder = folder
        self._database = database
        self._machines: list[Machine] = []
        database.execute(tables)
        self._slot = database.name[-50:]
        database.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", self._slot)

    def __call__(self, pipelines: dict[str, Any], **settings: Any) -> tuple[Machine, Machine]:
        addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
        replication = {
            **QUICK, "takeover": "auto", "takeover_after_s": 2.0, "mode": "sync", **settings,
        }  # fmt: skip
        source = {"dsn": self._database.socket_dsn, "slot": self._slot}
        for command, own, peer in (("run", *addresses), ("follow", *addresses[::-1])):
            name = f"machine-{len(self._machines)}"
            sides = replication | {"node": name, "listen": own, "followers": [peer]}
            made = Machine(
                command, self._folder / name, source=source, pipelines=pipelines, replication=sides
            )
            self._machines.append(made)
        one, other = self._machines
        return one.start(), other.start()

    def end(self) -> None:
        for each in self._machines:
            each.kill()


def parked(machine: Machine, pipeline: str) -> list[dict[str, Any]]:
    """The rows that are parked on a machine."""
    store = store_of(folder_of(machine.folder / "data", pipeline))
    with Listing(store) as listing:
        found = list(control.export(listing, Selection()))
    return [json.loads(message["payload"])["after"] for message in found]


def lacking(leader: Machine) -> int:
    [follower] = leader.status()["replication"]["leader"]["followers"]
    return int(follower["state_lacking"])


def bundles(machine: Machine) -> int:
    """How many bundles a follower has."""
    replication: dict[str, Any] = machine.status().get("replication") or {}
    return int((replication.get("follower") or {}).get("bundles", 0))
