"""`tailrace run` with alerts, and the webhook that receives them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx
import yaml

from tailrace.testing.process import free_port
from tests import http
from tests.faults.path import Supervisor
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tailrace.testing.receiver import HttpReceiver
    from tests.fix_postgres import Database

SHORT = {
    "heartbeat_s": 1,
    "stalled_s": 6,
    "for_s": 2,
    "repeat_s": 0,
    "disk_free_percent": 0,
}
"""Thresholds of tests. Machines that are busy with other work stall for seconds."""


def alerts(receiver: HttpReceiver, **more: Any) -> dict[str, Any]:
    """Settings that send everything to a webhook."""
    return {**SHORT, "channels": {"hook": {"webhook": {"url": receiver.url}}}, **more}


def received(receiver: HttpReceiver) -> list[dict[str, Any]]:
    """The documents that a webhook has received, in order."""
    return [json.loads(each.body) for each in receiver.requests]


def wait_for_message(receiver: HttpReceiver, kind: str, **fields: str) -> dict[str, Any]:
    """The first message of a kind with these fields."""

    def found() -> dict[str, Any] | None:
        for each in received(receiver):
            if each["kind"] == kind and fields.items() <= each.items():
                return each
        return None

    return wait_for(found, lambda: (kind, fields, received(receiver))) or {}


class Watched(Supervisor):
    """A `tailrace run` of capture and a watchdog, without pipelines."""

    def __init__(
        self,
        folder: Path,
        database: Database,
        alerts: Mapping[str, Any],
        *,
        dsn: str | None = None,
        **more: Any,
    ) -> None:
        self.database = database
        self.slot = database.name[-63:]
        self.url = f"http://127.0.0.1:{free_port()}"
        self.file = folder / "tailrace.yml"
        settings = {
            "source": {"dsn": dsn or database.socket_dsn, "slot": self.slot},
            "log": {"path": str(folder / "data" / "log")},
            "data": str(folder / "data"),
            "http": {"port": int(self.url.rpartition(":")[2])},
            "alerts": dict(alerts),
            **more,
        }
        self.file.write_text(yaml.safe_dump(settings))
        super().__init__("run", self.file, folder=folder)

    def prepare(self) -> None:
        """Create a table, the publication and the slot."""
        self.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        self.database.execute("CREATE PUBLICATION tailrace FOR TABLE t")
        self.database.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", self.slot)

    def get(self, path: str) -> Any:
        """The JSON of an endpoint; None while nothing answers."""
        try:
            return http.get(self.url + path).json()
        except httpx.TransportError:
            return None

    def state(self, check: str, subject: str = "") -> str:
        """The state of a check; empty while there is none."""
        for each in (self.get("/health/checks") or {}).get("checks", []):
            if (each["check"], each["subject"]) == (check, subject):
                return str(each["state"])
        return ""

    def process_pid(self, name: str) -> int:
        """The id of a process; 0 while it does not run."""
        return int(self.get("/status")["processes"][name]["pid"] or 0)

    def well(self) -> bool:
        """Whether heartbeats come back through the log."""
        return self.state("heartbeat") == self.state("replication") == "healthy"

    def reader(self) -> int | None:
        """The server process that sends to capture."""
        sql = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s"
        return next((pid for (pid,) in self.database.query(sql, self.slot)), None)
