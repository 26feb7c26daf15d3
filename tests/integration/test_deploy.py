"""The settings and the SQL of `deploy/compose-run.yml` with real servers, without containers."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tailrace.testing import EmbeddedNats, EmbeddedPostgres
from tailrace.testing.process import free_port
from tests import http
from tests.command import Service

DEPLOY = Path(__file__).parents[2] / "deploy"
NATS_USER = 'authorization { user: "tailrace", password: "tailrace" }'


@pytest.mark.long
def test_a_row_reaches_nats_and_the_endpoints_are_ready(tmp_path: Path) -> None:
    """GIVEN the database and the role of the SQL file, and the command and the settings of the
    container with the addresses of these servers WHEN a row is inserted THEN it is delivered, and
    the address that the container's health check asks answers 200."""
    compose = yaml.safe_load((DEPLOY / "compose-run.yml").read_text())
    service: dict[str, Any] = compose["services"]["tailrace"]
    port = free_port()
    with EmbeddedPostgres() as postgres, EmbeddedNats(config=NATS_USER) as nats:
        with postgres.connect() as sql:
            sql.execute("CREATE DATABASE shop")
        psql = (postgres.binary("psql"), "-v", "ON_ERROR_STOP=1", "-f", DEPLOY / "postgres-run.sql")
        subprocess.run([*psql, postgres.dsn("shop")], check=True, capture_output=True)
        settings = (DEPLOY / "tailrace.yml").read_text()
        for here, there in {
            "host=postgres": f"host=127.0.0.1 port={postgres.port}",
            "nats://nats:4222": nats.url,
            "/data/": f"{tmp_path}/",
            "http:\n": f"http:\n  port: {port}\n",
        }.items():
            assert here in settings
            settings = settings.replace(here, there)
        file = tmp_path / "tailrace.yml"
        file.write_text(settings)
        command, _, *options = service["command"]
        variables = service["environment"]
        with Service(command, file, *options, folder=tmp_path, env=variables) as running:
            ready = variables["TAILRACE_HEALTH_URL"].replace(":9090", f":{port}")
            running.start().wait_until(lambda: answers(ready), "it is ready")
            with postgres.connect("shop") as sql:
                sql.execute("INSERT INTO users (name) VALUES ('Ada')")
            metric = 'tailrace_events_total{pipeline="users"} 1.0'
            url = f"http://localhost:{port}/metrics"
            running.wait_until(lambda: metric in http.get(url).text, "the row is delivered")
            assert running.stop() == 0


def answers(url: str) -> bool:
    try:
        return http.get(url).status_code == 200
    except httpx.TransportError:
        return False
