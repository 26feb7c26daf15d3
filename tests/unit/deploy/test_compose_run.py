"""`tailrace run` in containers: its settings are valid, and names in the files fit together.

No container is started here: that needs a container engine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from tailrace import config
from tailrace.access.access import check_protection
from tailrace.cli import app
from tailrace.errors import ConfigError
from tailrace.jetstream.settings import JetStreamSettings
from tailrace.observe.hosts import AllowedHosts

DEPLOY = Path(__file__).parents[3] / "deploy"


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose-run.yml").read_text())
    return found


@pytest.fixture
def settings(compose: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> config.Config:
    for name, value in compose["services"]["tailrace"]["environment"].items():
        monkeypatch.setenv(name, value)
    return config.load(DEPLOY / "tailrace.yml")


def test_the_settings_need_the_insecure_of_the_command(
    compose: dict[str, Any], settings: config.Config
) -> None:
    """GIVEN the file alone THEN it is refused beyond loopback; the command allows it, and the port
    is published on loopback only."""
    with pytest.raises(ConfigError):
        check_protection(settings.http)
    service = compose["services"]["tailrace"]
    command, file, option = service["command"]
    assert command == "run"
    accepted: Any = typer.main.get_command(app)
    options = {name for each in accepted.get_command(None, "run").params for name in each.opts}
    assert option == "--insecure"
    assert option in options
    assert f"./tailrace.yml:{file}:ro" in service["volumes"]
    assert service["ports"] == [f"127.0.0.1:{settings.http.port}:{settings.http.port}"]
    assert all(
        port.startswith("127.0.0.1:")
        for each in compose["services"].values()
        for port in each.get("ports", [])
    )


def test_names_and_passwords_fit_together(compose: dict[str, Any], settings: config.Config) -> None:
    services = compose["services"]
    sql = (DEPLOY / "postgres-run.sql").read_text()
    words = dict(word.split("=") for word in settings.source.dsn.get_secret_value().split())
    assert words["host"] in services
    assert words["dbname"] == services["postgres"]["environment"]["POSTGRES_DB"]
    password = services["tailrace"]["environment"]["PGPASSWORD"]
    assert f"CREATE USER {words['user']} WITH REPLICATION PASSWORD '{password}'" in sql
    assert f"CREATE PUBLICATION {settings.source.publication} " in sql
    sink = settings.pipelines["users"].sink
    assert isinstance(sink, JetStreamSettings)
    assert sink.url.get_secret_value() == "nats://nats:4222"
    nats = services["nats"]["command"]
    assert nats[nats.index("--user") + 1] == sink.user
    assert nats[nats.index("--pass") + 1] == sink.password.get_secret_value()


def test_what_is_written_is_on_the_volume(compose: dict[str, Any], settings: config.Config) -> None:
    """GIVEN a read-only root THEN log and data folder are on the volume, /tmp is in memory, and
    libraries there can be loaded."""
    service = compose["services"]["tailrace"]
    assert service["read_only"]
    assert "tailrace:/data" in service["volumes"]
    assert settings.log.path.is_relative_to("/data")
    assert settings.data.is_relative_to("/data")
    assert service["tmpfs"] == ["/tmp:exec"]


def test_volumes_and_files_exist(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert (DEPLOY / source).exists() if "/" in source else source in compose["volumes"]
        for each in service.get("configs", []):
            assert each["source"] in compose["configs"]


def test_prometheus_and_grafana_find_what_they_read(
    compose: dict[str, Any], settings: config.Config
) -> None:
    contents = {name: yaml.safe_load(each["content"]) for name, each in compose["configs"].items()}
    [target] = contents["prometheus"]["scrape_configs"][0]["static_configs"][0]["targets"]
    assert AllowedHosts(settings.http.host, settings.http.hosts).allow(target)
    assert target == f"tailrace:{settings.http.port}"
    [rules] = contents["prometheus"]["rule_files"]
    prometheus, grafana = (compose["services"][name] for name in ("prometheus", "grafana"))
    assert f"./prometheus-rules.yml:/etc/prometheus/{rules}:ro" in prometheus["volumes"]
    folder = contents["boards"]["providers"][0]["options"]["path"]
    assert f"./grafana.json:{folder}/tailrace.json:ro" in grafana["volumes"]
    [source] = contents["datasource"]["datasources"]
    assert source["url"] == "http://prometheus:9090"
