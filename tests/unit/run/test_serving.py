"""The endpoints over hand-written status files, without a socket."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tailrace import __version__, config
from tailrace.observe.metrics import SlotFigures
from tailrace.run import status
from tailrace.run.overview import Overview
from tailrace.run.serving import Endpoints

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CAPTURE = {
    "state": "streaming",
    "messages": 1797,
    "changes": 900,
    "transactions": 300,
    "bytes": 12345,
    "end_lsn": "0/1832CE8",
    "reconnects": 2,
}
PIPELINE = {
    "state": "running",
    "code": "",
    "message": "",
    "position": "0/1832C00.4",
    "events": 288,
    "bytes": 4096,
    "duplicates": 1,
    "batches": 7,
    "restarts": 4,
    "reconnects": 1,
    "events_per_s": 12.5,
    "batch_ms": 81.5,
    "latency_ms": {"p50": 100.0, "p99": 250.0},
    "last_committed_at": "2026-01-31T12:00:00+00:00",
}
SEED_FIELDS = [
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
        self.application = Endpoints(self.config, overview, shut_down).application()

    def ask(self, method: str, path: str, **headers: str) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.application, raise_app_exceptions=False)
            named = {key.replace("_", "-"): value for key, value in headers.items()}
            url = "http://127.0.0.1:9090"
            async with httpx.AsyncClient(transport=transport, base_url=url) as client:
                return await client.request(method, path, headers=named)

        return asyncio.run(ask())

    def get(self, path: str) -> Any:
        answer = self.ask("GET", path)
        assert answer.headers["content-type"] == "application/json"
        return answer.json()

    def healthy(self) -> None:
        status.write(self.where, "capture", CAPTURE)
        status.write(
            self.where, "pipelines", {"state": "running", "pipelines": {"bridge": PIPELINE}}
        )

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


def test_health_is_that_the_server_answers(site: Site) -> None:
    answer = site.ask("GET", "/health")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


def test_status_has_the_bridges_fields_with_their_meaning(site: Site) -> None:
    site.healthy()
    told = site.get("/status")
    assert list(told)[: len(SEED_FIELDS)] == SEED_FIELDS
    assert told["uptime_seconds"] >= 0
    assert (
        told
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
        == told
    )


def test_status_shows_the_parts(site: Site) -> None:
    site.healthy()
    told = site.get("/status")
    assert told["source"]["slot"] == "my_slot"
    assert told["source"]["publication"] == "my_pub"
    assert told["processes"]["capture"]["state"] == "streaming"
    assert told["pipelines"]["bridge"]["position"] == "0/1832C00.4"
    assert told["pipelines"]["bridge"]["events"] == 288
    assert told["log"]["error"].startswith("BAD_CONFIG: there is no log")
    assert told["capture"]["acknowledged"] == "0/1832CE8"


def test_nothing_runs_yet(site: Site) -> None:
    site.slot = SlotFigures()
    told = site.get("/status")
    assert told["status"] == "disconnected"
    assert told["current_lsn"] == "0/0"
    assert told["wal_lag_bytes"] is None
    assert told["pipelines"]["bridge"]["state"] == "down"
    answer = site.ask("GET", "/ready")
    assert answer.status_code == 503
    assert answer.json() == {
        "status": "degraded",
        "problems": ["process capture: down", "pipeline bridge: down"],
    }


def test_ready_when_all_works(site: Site) -> None:
    site.healthy()
    answer = site.ask("GET", "/ready")
    assert (answer.status_code, answer.json()) == (200, {"status": "ready"})


def test_a_final_state_is_shown_by_its_name(site: Site) -> None:
    site.healthy()
    supervised = {
        "capture": {"state": "failed", "code": "GAP", "exit_code": 10, "pid": None, "restarts": 3},
        "pipelines": {"state": "running", "code": "", "pid": 1, "restarts": 0},
    }
    status.write(site.where, "run", {"started_at": 0, "processes": supervised})
    told = site.get("/status")
    assert told["processes"]["capture"]["state"] == "GAP"
    assert told["processes"]["capture"]["restarts"] == 3
    assert told["processes"]["pipelines"]["state"] == "starting"
    assert "process capture: GAP" in site.ask("GET", "/ready").json()["problems"]
    assert site.metrics()["tailrace_process_state", "capture,GAP"] == 1
    assert site.metrics()["tailrace_process_up", "capture"] == 0


def test_a_pipeline_in_trouble_is_a_problem(site: Site) -> None:
    site.healthy()
    trouble = PIPELINE | {"state": "retrying", "code": "SINK_UNREACHABLE"}
    status.write(site.where, "pipelines", {"state": "running", "pipelines": {"bridge": trouble}})
    answer = site.ask("GET", "/ready")
    assert answer.status_code == 503
    assert answer.json()["problems"] == ["pipeline bridge: retrying (SINK_UNREACHABLE)"]


def test_odd_status_files_are_no_error(site: Site) -> None:
    status.write(site.where, "run", {"processes": {"capture": 3}, "started_at": "x"})
    status.write(site.where, "capture", {"state": None, "messages": "many", "end_lsn": 4})
    status.write(site.where, "pipelines", {"pipelines": {"bridge": [], "old": {"position": 1}}})
    told = site.get("/status")
    assert told["wal_messages_received"] == 0
    assert set(told["pipelines"]) == {"bridge", "old"}
    assert site.ask("GET", "/metrics").status_code == 200


def test_metrics_have_the_bridges_names_and_types(site: Site) -> None:
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


def test_metrics_tell_pipelines_apart(site: Site) -> None:
    site.healthy()
    found = site.metrics()
    assert found["tailrace_events_total", "bridge"] == 288
    assert found["tailrace_duplicates_total", "bridge"] == 1
    assert found["tailrace_latency_seconds", "bridge,0.99"] == 0.25
    assert found["tailrace_batch_seconds", "bridge"] == 0.0815
    assert found["tailrace_info", __version__] == 1


def test_snapshots_show_how_far_they_are(site: Site) -> None:
    done = {"id": "snap-1", "table": "public.users", "state": "failed", "rows": 1, "seconds": 1.0}
    running = done | {"id": "snap-2", "state": "running", "rows": 500, "share": 0.25}
    report = {"state": "running", "snapshots": [done, running | {"seconds": 10.0}, "odd"]}
    status.write(site.where, "pipelines", report)
    first, second = site.get("/status")["snapshots"]
    assert (first["id"], first["state"], first["eta_s"]) == ("snap-1", "failed", None)
    assert (second["rows_per_s"], second["eta_s"]) == (50, 30)
    found = site.metrics()
    assert found["tailrace_snapshot_running", "public.users"] == 1
    assert found["tailrace_snapshot_failed", "public.users"] == 0
    assert found["tailrace_snapshot_rows", "public.users"] == 500
    assert found["tailrace_snapshot_share", "public.users"] == 0.25


def test_what_is_not_known_is_no_metric(site: Site) -> None:
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
        # A foreign name that was made to point here: Origin and Host agree.
        ({"origin": "http://evil.example:9090", "host": "evil.example:9090"}, False),
        ({"origin": "http://[bad", "host": "[bad"}, False),
    ],
)
def test_a_foreign_page_may_not_shut_down(
    tmp_path: Path, headers: dict[str, str], allowed: bool
) -> None:
    calls: list[int] = []
    site = Site(tmp_path / "data", lambda: calls.append(1))
    answer = site.ask("POST", "/shutdown", **headers)
    assert answer.status_code == (202 if allowed else 403)
    assert len(calls) == allowed


def test_a_nats_that_does_not_answer(site: Site) -> None:
    answer = site.ask("GET", "/streams/info?stream=CDC")
    assert answer.status_code == 502
    assert answer.json()["error"].startswith("SINK_UNREACHABLE")
