"""`tailrace serve` as a process, with a real PostgreSQL and a real NATS behind it."""

from __future__ import annotations

import asyncio
import socket
import stat
from typing import TYPE_CHECKING, Self

import httpx
import nats
import pytest
import structlog
import yaml
from typing_extensions import override

from tailrace import config
from tailrace.run.monitor import CRITICAL_BYTES, WARNING_BYTES, Monitor
from tailrace.testing import EmbeddedNats
from tailrace.testing.process import free_port
from tests import http
from tests.command import Service
from tests.waiting import LONG_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fix_postgres import Database


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedNats]:
    with EmbeddedNats() as started:
        yield started


class Served(Service):
    """A `tailrace serve` process."""

    def __init__(self, folder: Path, database: Database, nats_url: str) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        self.slot = database.name[-63:]
        settings = {
            "source": {"dsn": database.socket_dsn, "slot": self.slot, "publication": "p"},
            "log": {"path": str(folder / "log")},
            "data": str(folder),
            "http": {"port": int(self.url.rpartition(":")[2])},
            "pipelines": {"out": {"shape": "plain", "sink": {"type": "nats", "url": nats_url}}},
        }
        (folder / "tailrace.yml").write_text(yaml.safe_dump(settings))
        super().__init__("serve", "-c", folder / "tailrace.yml", folder=folder)

    @override
    def start(self) -> Self:
        super().start()
        self.wait_until(self.answers, "HTTP answers")
        return self

    def answers(self) -> bool:
        try:
            return http.get(f"{self.url}/health").status_code == 200
        except httpx.TransportError:
            return False

    def get(self, path: str) -> httpx.Response:
        return http.get(self.url + path, timeout=LONG_S)


@pytest.fixture
def served(tmp_path: Path, database: Database, server: EmbeddedNats) -> Iterator[Served]:
    made = Served(tmp_path, database, server.url)
    yield made
    assert made.stop(LONG_S) == 0, made.output


def test_stream_info_is_the_description_of_jetstream(served: Served, server: EmbeddedNats) -> None:
    async def create_stream() -> None:
        client = await nats.connect(server.url)
        await client.jetstream(timeout=60).add_stream(name="CDC", subjects=["cdc.>"])
        await client.jetstream(timeout=60).publish("cdc.t.insert", b"x")
        await client.close()

    asyncio.run(create_stream())
    served.start()
    answer = served.get("/streams/info?stream=CDC")
    assert answer.status_code == 200
    assert answer.json()["config"]["subjects"] == ["cdc.>"]
    assert answer.json()["state"]["messages"] == 1
    assert served.get("/streams/info").json()["config"]["name"] == "CDC"
    for unknown in ("NONE", "a.b", "CDC.>", "", "*"):
        answer = served.get(f"/streams/info?stream={unknown}")
        assert answer.status_code == 404
        assert "there is no stream" in answer.json()["error"]


def test_the_slot_is_monitored(served: Served, database: Database) -> None:
    database.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", served.slot)
    served.start()
    wait_for(lambda: served.get("/status").json()["wal_lag_bytes"] is not None)
    body = served.get("/status").json()
    assert body["slot_active"] is False
    assert body["source"]["lag_bytes"] >= 0
    assert body["wal_lag_bytes"] >= body["source"]["lag_bytes"]
    assert "bridge_wal_lag_bytes" in served.get("/metrics").text


def test_shutdown_without_a_supervisor_is_refused(served: Served) -> None:
    served.start()
    token = http.authorization(served.folder)
    answer = http.post(f"{served.url}/shutdown", headers=token)
    assert answer.status_code == 409
    assert served.answers()


def test_the_token_is_for_the_owner_and_stays(served: Served) -> None:
    """GIVEN no token in the settings WHEN the server starts THEN it creates a private one, once."""
    served.start()
    file = served.folder / "http.token"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    token = file.read_text()
    answer = http.post(f"{served.url}/shutdown")
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    served.stop()
    served.start()
    assert file.read_text() == token


def test_another_host_is_refused(served: Served) -> None:
    served.start()
    answer = http.get(f"{served.url}/status", headers={"host": "evil.example:9090"})
    assert answer.status_code == 421
    assert "http.hosts" in answer.json()["error"]
    port = served.url.rpartition(":")[2]
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", "[::1]"):
        assert http.get(f"{served.url}/health", headers={"host": host}).status_code == 200


def test_a_large_body_is_refused(served: Served) -> None:
    served.start()
    token = http.authorization(served.folder)

    def parts() -> Iterator[bytes]:
        for _ in range(100):
            yield b" " * 1024

    for body in (b" " * 100_000, parts()):
        answer = http.post(f"{served.url}/backfills", content=body, headers=token)
        assert answer.status_code == 413
    assert served.answers()


def test_services_run_while_the_port_is_in_use(served: Served) -> None:
    """GIVEN a port in use WHEN the process starts THEN its services run; HTTP starts later."""
    address = ("127.0.0.1", int(served.url.rpartition(":")[2]))
    with socket.create_server(address):
        Service.start(served)
        served.wait_until(lambda: "cannot listen" in served.output, "the port is in use")
        served.wait_until(lambda: "monitor.slot_missing" in served.output, "the monitor runs")
    served.wait_until(served.answers, "HTTP answers")


def test_openmetrics_on_request(served: Served) -> None:
    served.start()
    accept = "application/openmetrics-text; version=1.0.0"
    answer = http.get(f"{served.url}/metrics", headers={"accept": accept})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")


@pytest.fixture
def monitor(database: Database) -> Monitor:
    source = {"dsn": database.socket_dsn, "slot": database.name[-63:]}
    return Monitor(config.load(None, {"source": source}))


def test_a_missing_slot_is_reported(monitor: Monitor) -> None:
    monitor.check()
    assert monitor.figures.error == "the slot does not exist"
    assert monitor.figures.kept_wal_bytes is None


def test_the_last_figures_stay_while_the_server_is_down(
    monitor: Monitor, database: Database
) -> None:
    database.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", database.name[-63:])
    monitor.check()
    before = monitor.figures
    assert before.kept_wal_bytes is not None
    assert not before.error
    database.server.stop()
    try:
        monitor.check()
    finally:
        database.server.start()
    assert monitor.figures.kept_wal_bytes == before.kept_wal_bytes
    assert str(monitor.figures.error).startswith("UNREACHABLE")
    assert not monitor.figures.active


@pytest.mark.parametrize(
    ("kept", "level"),
    [(WARNING_BYTES - 1, ""), (WARNING_BYTES, "warning"), (CRITICAL_BYTES, "error")],
)
def test_much_lag_is_logged(monitor: Monitor, kept: int, level: str) -> None:
    with structlog.testing.capture_logs() as lines:
        monitor.warn(kept)
    assert [line["log_level"] for line in lines] == ([level] if level else [])
