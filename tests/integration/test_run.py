"""`tailrace run` with real capture and real HTTP over a real PostgreSQL."""

from __future__ import annotations

import os
import signal
import socket
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import yaml

from tailrace.log.changes import read_changes
from tailrace.log.reader import Log
from tailrace.process import alive
from tailrace.testing.process import free_port
from tests import command, http
from tests.command import Service
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fix_postgres import Database


class Running(Service):
    """A `tailrace run` process and its endpoints."""

    def __init__(self, folder: Path, database: Database) -> None:
        self.database = database
        self.slot = database.name[-63:]
        self.url = f"http://127.0.0.1:{free_port()}"
        self.file = folder / "tailrace.yml"
        settings = {
            "source": {"dsn": database.socket_dsn, "slot": self.slot},
            "log": {"path": str(folder / "data" / "log")},
            "data": str(folder / "data"),
            "http": {"port": int(self.url.rpartition(":")[2])},
        }
        self.file.write_text(yaml.safe_dump(settings))
        super().__init__("run", self.file, folder=folder)

    def get(self, path: str) -> httpx.Response | None:
        try:
            return http.get(self.url + path)
        except httpx.TransportError:
            return None

    def status(self) -> dict[str, Any]:
        answer = self.get("/status")
        body: dict[str, Any] = answer.json() if answer else {}
        return body

    def capture(self) -> dict[str, Any]:
        figures: dict[str, Any] = self.status().get("processes", {}).get("capture", {})
        return figures

    def streaming(self) -> bool:
        return bool(self.status().get("is_connected"))

    def rows(self) -> int:
        log = Log.open(self.folder / "data" / "log")
        return sum(1 for change in read_changes(log, log.earliest()) if change.relation)


@pytest.fixture
def running(tmp_path: Path, database: Database) -> Iterator[Running]:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    database.execute("CREATE PUBLICATION tailrace FOR TABLE t")
    system = Running(tmp_path, database)
    database.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", system.slot)
    yield system
    if system.alive:
        system.kill()
        wait_for(lambda: not _slot_is_read(system))


def _slot_is_read(running: Running) -> bool:
    sql = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
    return bool(running.database.query(sql, running.slot)[0][0])


def test_a_killed_capture_restarts_without_loss(running: Running) -> None:
    """GIVEN a run WHEN capture is killed THEN it restarts, and every row is in the log once."""
    running.start()
    running.wait_until(running.streaming, "capture streams")
    running.database.execute("INSERT INTO t SELECT g FROM generate_series(1, 10) g")
    wait_for(lambda: running.status().get("capture", {}).get("changes") == 10)
    status = running.status()
    assert status["wal_messages_received"] >= 13
    assert status["slot_active"] in (True, False)
    committed_at = datetime.fromisoformat(status["capture"]["last_committed_at"])
    assert timedelta(0) < datetime.now(UTC) - committed_at < timedelta(minutes=10)
    wait_for(lambda: running.status()["log"]["end"] == str(_log(running).end().position))

    first = running.capture()["pid"]
    os.kill(first, signal.SIGKILL)
    running.database.execute("INSERT INTO t SELECT g FROM generate_series(11, 20) g")
    wait_for(lambda: running.streaming() and running.capture()["pid"] != first)
    wait_for(lambda: running.capture().get("restarts") == 1)
    wait_for(lambda: running.rows() == 20)

    assert http.post(f"{running.url}/shutdown").status_code == 401
    token = http.authorization(running.folder / "data")
    assert http.post(f"{running.url}/shutdown", headers=token).status_code == 202
    assert running.wait() == 0
    assert running.rows() == 20
    wait_for(lambda: not _slot_is_read(running), "the slot is free")


def _log(running: Running) -> Log:
    return Log.open(running.folder / "data" / "log")


def test_reconnects_are_counted(running: Running) -> None:
    running.start()
    running.wait_until(running.streaming, "capture streams")
    sql = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s"
    running.database.query(sql, running.slot)
    wait_for(lambda: running.status().get("reconnect_count") == 1 and running.streaming())
    assert running.capture()["restarts"] == 0
    assert running.stop() == 0


def test_without_a_worker_the_exit_code_is_that_of_the_worker(running: Running) -> None:
    running.database.query("SELECT pg_drop_replication_slot(%s)", running.slot)
    assert running.start().wait() == 22
    assert f"replication slot {running.slot} does not exist" in running.output
    assert "process.failed" in running.output


def test_an_unreachable_server_is_retried(running: Running) -> None:
    """A first connection that fails ends capture with UNREACHABLE, which is not final."""
    text = running.file.read_text()
    running.file.write_text(text.replace(running.database.socket_dsn, "host=127.0.0.1 port=1"))
    running.start()
    wait_for(lambda: running.capture().get("restarts", 0) >= 1)
    ready = running.get("/ready")
    assert ready is not None
    assert ready.status_code == 503
    wait_for(lambda: str(running.status().get("source", {}).get("error")).startswith("UNREACHABLE"))
    assert running.stop() == 0


def test_children_end_with_a_killed_supervisor(running: Running) -> None:
    running.start()
    running.wait_until(running.streaming, "capture streams")
    wait_for(lambda: len(running.status().get("processes", {})) == 2)
    children = [figures["pid"] for figures in running.status()["processes"].values()]
    running.kill()
    wait_for(lambda: not any(alive(pid) for pid in children))


def test_http_starts_when_its_port_is_free(running: Running) -> None:
    """GIVEN a port in use WHEN it is freed THEN HTTP starts; capture runs all the time."""
    address = ("127.0.0.1", int(running.url.rpartition(":")[2]))
    with socket.create_server(address):
        running.start()
        wait_for(lambda: "cannot listen" in running.output)
        wait_for(lambda: _slot_is_read(running))
    wait_for(running.streaming)
    assert running.stop() == 0


def test_a_restarted_process_reads_what_runs(running: Running) -> None:
    """GIVEN a run whose file is being edited WHEN capture is killed THEN it restarts with the
    settings that run, and the plan still has the difference."""
    running.start()
    running.wait_until(running.streaming, "capture streams")
    values = yaml.safe_load(running.file.read_text())
    running.file.write_text(yaml.safe_dump({**values, "source": {"dsn": "host=127.0.0.1 port=1"}}))
    first = running.capture()["pid"]
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: running.streaming() and running.capture()["pid"] != first)
    running.database.execute("INSERT INTO t VALUES (1)")
    wait_for(lambda: running.rows() == 1)
    planned = command.run("plan", "-c", running.file)
    assert planned.returncode == 2
    assert "dsn: changed (secret)" in planned.stdout
    running.file.write_text("source: [")
    first = running.capture()["pid"]
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: running.streaming() and running.capture()["pid"] != first)
    running.signal(signal.SIGHUP)
    wait_for(lambda: "run.reload_refused" in running.output)
    running.file.write_text(yaml.safe_dump(values))
    assert command.run("plan", "-c", running.file).returncode == 0
    assert running.stop() == 0


def test_a_signal_applies_a_change(running: Running) -> None:
    """GIVEN a run WHEN its file is edited and SIGHUP arrives THEN the new settings run."""
    running.start()
    running.wait_until(running.streaming, "capture streams")
    values = yaml.safe_load(running.file.read_text())
    values["http"]["hosts"] = ["tailrace.example"]
    running.file.write_text(yaml.safe_dump(values))
    assert command.run("plan", "-c", running.file).returncode == 2
    running.signal(signal.SIGHUP)
    wait_for(lambda: command.run("plan", "-c", running.file).returncode == 0)
    name = {"host": "tailrace.example"}

    def answers() -> bool:
        try:
            return http.get(f"{running.url}/status", headers=name).status_code == 200
        except httpx.TransportError:
            return False

    wait_for(answers, "the new name is accepted")
    assert running.stop() == 0
