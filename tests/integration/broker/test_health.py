"""The broker's HTTP endpoints, while clients use it."""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tailrace.testing import EmbeddedPostgres
from tailrace.testing.process import free_port
from tests import http
from tests.fix_broker import BrokerProcess
from tests.fix_postgres import Database
from tests.integration.broker.clients import Librdkafka, Login
from tests.integration.broker.raw import Raw
from tests.integration.broker.samples import sample_records
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    """A server that the tests may stop."""
    with EmbeddedPostgres(18) as started:
        yield started


@pytest.fixture
def watched(server: EmbeddedPostgres, tmp_path: Path) -> Iterator[tuple[BrokerProcess, str]]:
    name = server.create_database(f"health_{uuid.uuid4().hex[:8]}")
    port = free_port()
    broker = BrokerProcess(Database(name=name, server=server), tmp_path, "--port", str(port))
    broker.init()
    broker.start()
    broker.wait_until(lambda: "broker.listening" in broker.output, "HTTP")
    yield broker, f"http://127.0.0.1:{port}"
    assert broker.stop() == 0, broker.output
    assert "broker.connection_failed" not in broker.output


def metrics(url: str) -> dict[str, float]:
    """Every sample, by its name and labels."""
    text = http.get(f"{url}/metrics").raise_for_status().text
    return {
        sample.name + "".join(f",{key}={value}" for key, value in sample.labels.items()): float(
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_and_status(watched: tuple[BrokerProcess, str]) -> None:
    broker, url = watched
    broker.account("user", "add", "ann", "--superuser", password="1")
    broker.database.query("SELECT kafka.create_topic('t', 3, '{\"retention.ms\": \"-1\"}')")
    client = Librdkafka(broker.bootstrap, Login(user="ann", password="1"))
    client.produce("t", sample_records(100), compression="gzip")
    assert len(client.consume("t", 100, group="g")) == 100
    with Raw(broker.port) as raw:
        assert raw.login("ann", "2").error_code
    with Raw(broker.port) as raw:
        raw.link.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert raw.closed()
    with Raw(broker.port) as raw:
        raw.send(3, 9, {"topics": []})
        assert raw.closed()
    found = metrics(url)
    prefix = "tailrace_broker_"
    expected = {
        "up": 1, "topics": 1, "partitions": 3, "users": 1, "produced_records_total": 100,
        "logins_total,result=refused": 1, "refused_total,reason=malformed": 1,
        "refused_total,reason=login": 1, "request_memory_bytes": 0, "request_memory_waiting": 0,
    }  # fmt: skip
    assert {name: found[prefix + name] for name in expected} == expected
    assert found[prefix + "fetched_bytes_total"] > 0
    assert 0 < found[prefix + "batches_total"] <= 100
    assert found[prefix + "produced_bytes_total"] > 100 * 50
    assert found[prefix + "logins_total,result=accepted"] >= 2
    for api in ("Produce", "Fetch", "Metadata", "SaslAuthenticate", "ApiVersions", "JoinGroup"):
        count = found[f"{prefix}requests_total,api={api}"]
        assert count > 0
        assert found[f"{prefix}request_seconds_count,api={api}"] == count
        assert found[f"{prefix}request_seconds_bucket,api={api},le=+Inf"] == count
    status = http.get(f"{url}/status").json()
    assert (status["status"], status["topics"], status["users"]) == ("connected", 1, 1)
    with Raw(broker.port):
        wait_for(lambda: http.get(f"{url}/status").json()["connections"] == 1, "the connection")
    assert "endpoints" in http.get(f"{url}/nowhere").json()
    assert http.get(f"{url}/nowhere").status_code == 404


def test_every_metric_is_documented(watched: tuple[BrokerProcess, str]) -> None:
    """The page documents every metric, and no others."""
    from pathlib import Path  # noqa: PLC0415 - only this test reads the page

    broker, url = watched
    with Raw(broker.port) as raw:
        raw.link.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert raw.closed()
    text = http.get(f"{url}/metrics").text
    exported = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    page = Path(__file__).parents[3] / "docs/reference/http.md"
    named = set(re.findall(r"`(tailrace_broker_\w+)", page.read_text()))
    assert named == {name for name in exported if name.startswith("tailrace_broker_")}


def test_health_without_postgres(
    server: EmbeddedPostgres, watched: tuple[BrokerProcess, str]
) -> None:
    _, url = watched
    assert http.get(f"{url}/health").json() == {"status": "ok"}
    assert http.get(f"{url}/ready").json() == {"status": "ready"}
    server.stop()
    wait_for(lambda: http.get(f"{url}/ready").status_code == 503, "the broker to be degraded")
    assert http.get(f"{url}/health").json() == {"status": "ok"}
    assert metrics(url)["tailrace_broker_up"] == 0
    server.start()
    wait_for(lambda: http.get(f"{url}/ready").status_code == 200, "the broker to be ready")
