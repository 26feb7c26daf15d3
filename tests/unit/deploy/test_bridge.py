"""The bridge in containers: its options exist, and names in the files of `deploy/` fit together.

No container is started here: that needs a container engine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from tailrace.cli import app
from tailrace.observe.hosts import AllowedHosts
from tailrace.run.presets import bridge
from tailrace.run.presets.options import BridgeOptions

DEPLOY = Path(__file__).parents[3] / "deploy"


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yml").read_text())
    return found


def options(compose: dict[str, Any]) -> dict[str, str]:
    """The options of the bridge, by name."""
    command, *words = compose["services"]["bridge"]["command"]
    assert command == "bridge"
    parts = (word.removeprefix("--").partition("=") for word in words)
    return {name: value or "true" for name, _, value in parts}


def test_the_options_of_the_bridge_exist(compose: dict[str, Any]) -> None:
    command: Any = typer.main.get_command(app)
    accepted = {name for each in command.get_command(None, "bridge").params for name in each.opts}
    assert {f"--{name}" for name in options(compose)} <= accepted


def test_the_variables_of_the_bridge_are_read(
    compose: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN the environment of the container WHEN the settings are built THEN each variable has
    changed them."""
    given = BridgeOptions.model_validate(options(compose))
    environment: dict[str, str] = compose["services"]["bridge"]["environment"]
    full = bridge.settings(given, environment) | bridge.secrets(environment)
    for name in environment.keys() - {"NATS_BRIDGE_PASSWORD"}:
        less = {key: value for key, value in environment.items() if key != name}
        assert bridge.settings(given, less) | bridge.secrets(less) != full, name
    assert "${NATS_BRIDGE_PASSWORD:-}" in str(full)


def test_names_fit_together(compose: dict[str, Any]) -> None:
    services, given = compose["services"], options(compose)
    environment = services["bridge"]["environment"]
    assert environment["PG_HOST"] in services
    assert environment["NATS_HOST"] in services
    assert services["postgres"]["environment"]["POSTGRES_DB"] == environment["PG_DB"]
    nats = services["nats"]["command"]
    assert nats[nats.index("--user") + 1] == environment["NATS_BRIDGE_USER"]
    assert nats[nats.index("--pass") + 1] == environment["NATS_BRIDGE_PASSWORD"]
    sql = (DEPLOY / "postgres.sql").read_text()
    assert f"CREATE PUBLICATION {given['pub']} " in sql
    assert f"CREATE USER {environment['POSTGRES_BRIDGE_USER']} " in sql
    assert f"'{environment['POSTGRES_BRIDGE_PASSWORD']}'" in sql
    assert f"bridge:{given['data']}" in services["bridge"]["volumes"]
    for service in services.values():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert (DEPLOY / source).exists() if "/" in source else source in compose["volumes"]


def test_prometheus_may_scrape_the_bridge(compose: dict[str, Any]) -> None:
    given = options(compose)
    content = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    [target] = content["scrape_configs"][0]["static_configs"][0]["targets"]
    hosts = AllowedHosts(given["host"], given["hosts"].split(","))
    assert target.split(":")[0] in compose["services"]
    assert hosts.allow(target)
    assert target.endswith(f":{given['port']}")
    assert not AllowedHosts(given["host"]).allow(target)


def test_prometheus_reads_the_rules(compose: dict[str, Any]) -> None:
    content = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    mounted = [each.split(":") for each in compose["services"]["prometheus"]["volumes"]]
    inside = {target: source for source, target, *_ in mounted}
    assert inside[f"/etc/prometheus/{content['rule_files'][0]}"] == "./prometheus-rules.yml"
