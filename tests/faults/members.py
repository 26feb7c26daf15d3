"""Machines that lead or follow, as processes, and a reader that goes from leader to leader."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import yaml

from tailrace.change import Op
from tailrace.log.changes import read_changes
from tailrace.log.format import mark as marks
from tailrace.log.reader import Log
from tailrace.position import ORIGIN
from tests.command import Service
from tests.integration.replica.cluster import QUICK
from tests.integration.replica.machines import Cluster, Machine, Row
from tests.waiting import wait_for

if TYPE_CHECKING:
    import signal
    from pathlib import Path


class Member(Machine):
    """A machine that leads or follows."""

    def __init__(
        self,
        cluster: Cluster,
        folder: Path,
        address: str,
        others: list[str],
        *,
        dsn: str = "",
        log: dict[str, Any] | None = None,
        **replication: Any,
    ) -> None:
        super().__init__(cluster, folder, dsn or cluster.database.socket_dsn)
        self.address = address
        self.processes: dict[str, Service] = {}
        settings = yaml.safe_load(self.config_file.read_text())
        settings["log"] |= log or {}
        sync = {"mode": "sync", "visible": "quorum"}
        own = {"node": folder.name, "listen": address, "followers": others}
        settings["replication"] = QUICK | own | sync | replication
        settings["data"] = "data"
        self.config_file.write_text(yaml.safe_dump(settings))

    def run(self, command: str) -> Service:
        """Start capture, replicate or follow."""
        arguments = (command, "-c", self.config_file)
        extra = ("--alone",) if command == "follow" else ()
        file = f"{command}-{time.monotonic_ns()}.log"
        service = Service(*arguments, *extra, folder=self.folder, file=file)
        self.processes[command] = service
        return service.start()

    def lead(self) -> None:
        self.run("capture")
        wait_for(lambda: any(self.log_folder.glob("*.seg")), "a log")
        self.run("replicate")

    def alive(self, command: str) -> bool:
        return command in self.processes and self.processes[command].alive

    def end(self) -> None:
        """Kill everything."""
        for process in self.processes.values():
            if process.alive:
                process.kill()
        self.processes.clear()

    def signal(self, number: signal.Signals) -> None:
        for process in self.processes.values():
            if process.alive:
                process.signal(number)

    @property
    def held(self) -> tuple[int, int] | None:
        """How far its log is durable."""
        mark = marks.peek(self.store)
        return None if mark is None else mark.place

    def output(self) -> str:
        """What all its processes have printed."""
        return "".join(file.read_text() for file in sorted(self.folder.glob("*-*.log")))


class Reader:
    """A reader that delivers what it may see, from one leader after another."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._after = ORIGIN

    def read(self, machine: Member) -> int:
        """Deliver what is new at this leader; a position that it has delivered is skipped."""
        log = Log.open(machine.log_folder)
        end = log.end().position
        if end <= self._after:
            return 0
        found: list[Row] = [
            (each.position, each.xid, each.after or ())
            for each in read_changes(log, max(self._after, log.earliest()), end)
            if each.op is not Op.MESSAGE
        ]
        self.rows += found
        self._after = end
        return len(found)
