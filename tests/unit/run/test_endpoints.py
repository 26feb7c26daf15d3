"""The endpoints over status files that the test writes, without a socket."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tailrace import __version__, audit, config
from tailrace.observe.copies import SnapshotFigures
from tailrace.observe.figures import CaptureFigures, PipelineFigures, ProcessFigures
from tailrace.observe.kept import SlotFigures
from tailrace.position import Lsn
from tailrace.run import status
from tailrace.run.endpoints import Endpoints
from tailrace.run.overview import Overview
from tailrace.run.status import PipelinesStatus, RunStatus

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CAPTURE = CaptureFigures(
    state="streaming",
    messages=1797,
    changes=900,
    transactions=300,
    bytes=12345,
    acknowledged=Lsn.parse("0/1832CE8"),
    sessions=3,
    last_committed_at=datetime(2026, 1, 31, 11, tzinfo=UTC),
)
PIPELINE = PipelineFigures(
    state="running",
    position="0/1832C00.4",
    events=288,
    bytes=4096,
    duplicates=1,
    batches=7,
    restarts=4,
    reconnects=1,
    events_per_s=12.5,
    batch_ms=81.5,
    latency_ms_p50=100.0,
    latency_ms_p99=250.0,
    last_committed_at=datetime(2026, 1, 31, 12, tzinfo=UTC),
)
BRIDGE_FIELDS = [
    "status",
    "uptime_seconds",
    "wal_messages_received",
    "cdc_events_published",
    "current_lsn",
    "is_connected",
    "reconnect_count",
    "nats_reconnect_count",
    "last_processing_time_us",
    "slot_active",
    "wal_lag_bytes",
    "wal_lag_mb",
]
TOKEN = "0123456789abcdef"
SLOT = SlotFigures(active=True, kept_wal_bytes=51344, lag_bytes=120, checked_at="now")


class Site:
    """The application over a data folder."""

    def __init__(self, data: Path, shut_down: Callable[[], None] | None = None) -> None:
        sink = {"type": "nats", "url": "nats://127.0.0.1:1"}
        values = {
            "data": str(data),
            "log": {"path": str(data / "log")},
            "source": {"slot": "my_slot", "publication": "my_pub"},
            "pipelines": {"bridge": {"sink": sink}},
        }
        self.config = config.Config.model_validate(values)
        self.where = status.folder(data)
        status.clear(self.where)
        self.slot = SLOT
        overview = Overview(self.config, lambda: self.slot)
        self.failing: list[str] = []
        self.application = Endpoints(
            self.config, overview, shut_down, token=TOKEN, failing=lambda: self.failing
        ).application()

    def ask(
        self, method: str, path: str, *, body: str = "", token: str = TOKEN, **headers: str
    ) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.application, raise_app_exceptions=False)
            named = {"authorization": f"Bearer {token}"} if token else {}
            named |= {key.replace("_", "-"): value for key, value in headers.items()}
            url = "http://127.0.0.1:9090"
            async with httpx.AsyncClient(transport=transport, base_url=url) as client:
                return await client.request(method, path, headers=named, content=body)

        return asyncio.run(ask())

    def get(self, path: str) -> Any:
        answer = self.ask("GET", path)
        assert answer.headers["content-type"] == "application/json"
        return answer.json()

    def healthy(self) -> None:
        status.write(self.where, "capture", CAPTURE)
        self.write_pipeline(PIPELINE)

    def write_pipeline(self, figures: PipelineFigures) -> None:
        report = PipelinesStatus(state="running", pipelines={"bridge": figures})
        status.write(self.where, "pipelines", report)

    def write_json(self, process: str, **content: object) -> None:
        """A status file that no process of this version would write."""
        text = json.dumps({"pid": os.getpid(), **content})
        (self.where / f"{process}.json").write_text(text)

    def metrics(self) -> dict[tuple[str, str], float]:
        answer = self.ask("GET", "/metrics")
        assert answer.headers["content-type"].startswith("text/plain")
        return {
            (sample.name, ",".join(sample.labels.values())): sample.value
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
        }


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "data")


def test_health_needs_only_the_server(site: Site) -> None:
    answer = site.ask("GET", "/health")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


def test_health_checks_without_a_watchdog(site: Site) -> None:
    answer = site.ask("GET", "/health/checks")
    assert (answer.status_code, answer.json()["watchdog"]) == (200, "down")


def test_status_begins_with_the_fields_of_the_bridge(site: Site) -> None:
    site.healthy()
    body = site.get("/status")
    assert list(body)[: len(BRIDGE_FIELDS)] == BRIDGE_FIELDS
    assert body["uptime_seconds"] >= 0
    assert (
        body
        | {
            "status": "connected",
            "wal_messages_received": 1797,
            "cdc_events_published": 288,
            "current_lsn": "0/1832ce8",
            "is_connected": True,
            "reconnect_count": 2,
            "nats_reconnect_count": 1,
            "last_processing_time_us": 81500,
            "slot_active": True,
            "wal_lag_bytes": 51344,
            "wal_lag_mb": 0,
            "version": __version__,
        }
        == body
    )


def test_status_has_a_section_per_component(site: Site) -> None:
    site.healthy()
    body = site.get("/status")
    assert body["source"]["slot"] == "my_slot"
    assert body["source"]["publication"] == "my_pub"
    assert body["processes"]["capture"]["state"] == "streaming"
    assert body["pipelines"]["bridge"]["position"] == "0/1832C00.4"
    assert body["pipelines"]["bridge"]["events"] == 288
    assert body["log"]["error"].startswith("BAD_CONFIG: there is no log")
    assert body["capture"]["acknowledged"] == "0/1832CE8"
    assert body["capture"]["last_committed_at"] == "2026-01-31T11:00:00+00:00"
    assert body["pipelines"]["bridge"]["last_committed_at"] == "2026-01-31T12:00:00+00:00"


def test_status_and_ready_before_anything_runs(site: Site) -> None:
    site.slot = SlotFigures()
    body = site.get("/status")
    assert body["status"] == "disconnected"
    assert body["current_lsn"] == "0/0"
    assert body["wal_lag_bytes"] is None
    assert body["pipelines"]["bridge"]["state"] == "down"
    answer = site.ask("GET", "/ready")
    assert answer.status_code == 503
    assert answer.json() == {
        "status": "degraded",
        "problems": ["process capture: down", "pipeline bridge: down"],
    }


def test_ready_if_capture_and_pipelines_run(site: Site) -> None:
    site.healthy()
    answer = site.ask("GET", "/ready")
    assert (answer.status_code, answer.json()) == (200, {"status": "ready"})


def test_a_final_state_is_shown_by_its_code(site: Site) -> None:
    site.healthy()
    supervised = {
        "capture": ProcessFigures(state="failed", code="GAP", exit_code=10, restarts=3),
        "pipelines": ProcessFigures(state="running", pid=1),
    }
    status.write(site.where, "run", RunStatus(started_at=0, processes=supervised))
    body = site.get("/status")
    assert body["processes"]["capture"]["state"] == "GAP"
    assert body["processes"]["capture"]["restarts"] == 3
    assert body["processes"]["pipelines"]["state"] == "starting"
    assert "process capture: GAP" in site.ask("GET", "/ready").json()["problems"]
    assert site.metrics()["tailrace_process_state", "capture,GAP"] == 1
    assert site.metrics()["tailrace_process_up", "capture"] == 0


def test_a_pipeline_that_retries_is_a_problem(site: Site) -> None:
    site.healthy()
    site.write_pipeline(replace(PIPELINE, state="retrying", code="SINK_UNREACHABLE"))
    answer = site.ask("GET", "/ready")
    assert answer.status_code == 503
    assert answer.json()["problems"] == ["pipeline bridge: retrying (SINK_UNREACHABLE)"]


def test_invalid_status_files_are_missing_figures(site: Site) -> None:
    site.write_json("run", processes={"capture": 3}, started_at="x")
    site.write_json("capture", state=None, messages="many", acknowledged=4)
    site.write_json("pipelines", pipelines={"bridge": [], "old": {"position": 1}})
    body = site.get("/status")
    assert body["wal_messages_received"] == 0
    assert set(body["pipelines"]) == {"bridge", "old"}
    assert site.ask("GET", "/metrics").status_code == 200


def test_metrics_have_the_names_and_types_of_the_bridge(site: Site) -> None:
    site.healthy()
    answer = site.ask("GET", "/metrics")
    families = {family.name: family for family in text_string_to_metric_families(answer.text)}
    counters = {
        "bridge_wal_messages_received": 1797,
        "bridge_cdc_events_published": 288,
        "bridge_reconnects": 2,
        "bridge_nats_reconnects": 1,
    }
    gauges = {
        "bridge_last_ack_lsn": 0x1832CE8,
        "bridge_connected": 1,
        "bridge_last_processing_time_us": 81500,
        "bridge_slot_active": 1,
        "bridge_wal_lag_bytes": 51344,
    }
    for kind, expected in (("counter", counters), ("gauge", gauges)):
        for name, value in expected.items():
            family = families[name]
            suffix = "_total" if kind == "counter" else ""
            assert family.type == kind
            assert family.documentation
            assert [(s.name, s.value) for s in family.samples] == [(name + suffix, value)]
    assert families["bridge_uptime_seconds"].type == "gauge"
    assert all(family.documentation for family in families.values())


def test_metrics_are_labelled_by_pipeline(site: Site) -> None:
    site.healthy()
    found = site.metrics()
    assert found["tailrace_events_total", "bridge"] == 288
    assert found["tailrace_duplicates_total", "bridge"] == 1
    assert found["tailrace_latency_seconds", "bridge,0.99"] == 0.25
    assert found["tailrace_batch_seconds", "bridge"] == 0.0815
    assert found["tailrace_info", __version__] == 1


def test_snapshots_show_their_progress(site: Site) -> None:
    done = SnapshotFigures(id="snap-1", table="public.users", state="failed", rows=1, seconds=1.0)
    running = replace(done, id="snap-2", state="running", rows=500, share=0.25, seconds=10.0)
    snapshots = [*map(asdict, (done, running)), "odd"]
    site.write_json("pipelines", state="running", snapshots=snapshots)
    first, second = site.get("/status")["snapshots"]
    assert (first["id"], first["state"], first["eta_s"]) == ("snap-1", "failed", None)
    assert (second["rows_per_s"], second["eta_s"]) == (50, 30)
    found = site.metrics()
    assert found["tailrace_snapshot_running", "public.users"] == 1
    assert found["tailrace_snapshot_failed", "public.users"] == 0
    assert found["tailrace_snapshot_rows", "public.users"] == 500
    assert found["tailrace_snapshot_share", "public.users"] == 0.25


def test_unknown_figures_are_not_in_metrics(site: Site) -> None:
    site.slot = SlotFigures()
    names = {name for name, _ in site.metrics()}
    assert "bridge_wal_lag_bytes" not in names
    assert "tailrace_log_bytes" not in names
    assert "tailrace_lag_bytes" not in names


def test_an_unknown_path_lists_the_endpoints(site: Site) -> None:
    answer = site.ask("GET", "/nothing")
    assert answer.status_code == 404
    assert "POST /shutdown" in answer.json()["endpoints"]


def test_shutdown_is_only_a_post(site: Site) -> None:
    answer = site.ask("GET", "/shutdown")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "POST"
    assert "error" in answer.json()


def test_shutdown_without_a_supervisor_is_refused(site: Site) -> None:
    assert site.ask("POST", "/shutdown").status_code == 409


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({}, True),
        ({"origin": "http://127.0.0.1:9090"}, True),
        ({"origin": "http://localhost:9090", "host": "localhost:9090"}, True),
        ({"origin": "http://[::1]:9090", "host": "[::1]:9090"}, True),
        ({"sec_fetch_site": "same-origin"}, True),
        ({"origin": "http://evil.example"}, False),
        ({"origin": "null"}, False),
        ({"origin": ""}, False),
        ({"origin": "http://127.0.0.1:8080"}, False),
        ({"sec_fetch_site": "cross-site"}, False),
        ({"sec_fetch_site": "same-site", "origin": "http://127.0.0.1:9090"}, False),
    ],
)
def test_a_page_of_another_site_may_not_shut_down(
    tmp_path: Path, headers: dict[str, str], allowed: bool
) -> None:
    calls: list[int] = []
    site = Site(tmp_path / "data", lambda: calls.append(1))
    answer = site.ask("POST", "/shutdown", **headers)
    assert answer.status_code == (202 if allowed else 403)
    assert len(calls) == allowed
    entries = audit.latest(tmp_path / "data", limit=10)
    assert [(each["action"], each["user"]) for each in entries] == (
        [("system.shutdown", "http")] if allowed else []
    )


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("host", ["evil.example:9090", "[bad", "10.0.0.7:9090"])
def test_dns_rebinding_is_refused(site: Site, method: str, host: str) -> None:
    """GIVEN a foreign name that points to this server WHEN its page asks THEN it learns nothing."""
    path = "/status" if method == "GET" else "/shutdown"
    answer = site.ask(method, path, host=host, origin=f"http://{host}")
    assert answer.status_code == 421
    assert list(answer.json()) == ["error"]


@pytest.mark.parametrize("path", ["/shutdown", "/backfills", "/backfills/fill-1/pause"])
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": TOKEN},
        {"authorization": f"Basic {TOKEN}"},
        {"authorization": "Bearer"},
        {"authorization": f"Bearer {TOKEN}0"},
    ],
)
def test_changes_need_the_token(tmp_path: Path, path: str, headers: dict[str, str]) -> None:
    calls: list[int] = []
    site = Site(tmp_path / "data", lambda: calls.append(1))
    answer = site.ask("POST", path, token="", **headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert "http.token" in answer.json()["error"]
    assert not calls
    assert site.get("/backfills") == []


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ('"rate": NaN', "rate"),
        ('"rate": Infinity', "rate"),
        ('"rate": -1', "rate"),
        ('"rate": 1e999', "rate"),
        ('"where": "pg_terminate_backend(1)"', "the function pg_terminate_backend() is not"),
        ('"where": "id = (SELECT 1)"', "SELECT is not allowed"),
        ('"speed": 1', "speed"),
    ],
)
def test_invalid_backfills_are_refused(site: Site, changed: str, reason: str) -> None:
    order = '{"pipeline": "bridge", "table": "orders", '
    answer = site.ask("POST", "/backfills", body=f"{order}{changed}}}")
    assert answer.status_code == 400
    assert reason in answer.json()["error"]
    assert site.get("/backfills") == []


def test_a_backfill_is_requested(site: Site) -> None:
    order = '{"pipeline": "bridge", "table": "orders", "where": "id > 1", "rate": 5}'
    answer = site.ask("POST", "/backfills", body=order)
    assert answer.status_code == 202
    (row,) = site.get("/backfills")
    assert (row["id"], row["where"], row["rate"]) == (answer.json()["id"], "id > 1", 5)


def test_a_large_body_is_refused(site: Site) -> None:
    assert site.ask("POST", "/backfills", body=" " * 100_000).status_code == 413
    assert site.ask("POST", "/shutdown", body=" " * 100_000).status_code == 413


def test_a_service_that_failed_is_a_problem(site: Site) -> None:
    site.healthy()
    site.failing = ["schemas"]
    answer = site.ask("GET", "/ready")
    assert answer.status_code == 503
    assert answer.json()["problems"] == ["service schemas: failed, will be restarted"]


def test_stream_info_while_nats_does_not_answer(site: Site) -> None:
    answer = site.ask("GET", "/streams/info?stream=CDC")
    assert answer.status_code == 502
    assert answer.json()["error"].startswith("SINK_UNREACHABLE")
