"""The files of `deploy/`: their options, names and metrics exist.

The image is not built and no container is started here: that needs a container engine.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from tailrace.cli import app
from tailrace.observe.hosts import AllowedHosts
from tailrace.observe.metrics import exposition
from tailrace.run.presets import bridge
from tailrace.run.presets.options import BridgeOptions
from tests.unit.observe.test_figures import SYSTEM

DEPLOY = Path(__file__).parents[2] / "deploy"
_NAME = re.compile(r"\b(?:bridge|tailrace|creek)_[a-z_0-9]+")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yml").read_text())
    return found


@pytest.fixture(scope="module")
def board() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DEPLOY / "grafana-bridge.json").read_text())
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


def test_every_metric_of_the_board_exists(board: dict[str, Any]) -> None:
    body, _ = exposition(lambda: SYSTEM)
    known = {line.split("{")[0].split(" ")[0] for line in body.decode().splitlines()}
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    expressions += [each["query"] for each in board["templating"]["list"]]
    used = {name for expression in expressions for name in _NAME.findall(expression)}
    assert len(used) > 10
    assert used <= known


@pytest.fixture(scope="module")
def rules() -> list[dict[str, Any]]:
    content = yaml.safe_load((DEPLOY / "prometheus-rules.yml").read_text())
    found: list[dict[str, Any]] = [rule for each in content["groups"] for rule in each["rules"]]
    return found


def test_every_metric_and_label_of_the_rules_exists(rules: list[dict[str, Any]]) -> None:
    """GIVEN a rule THEN its metrics exist, with the labels that it and its texts name."""
    body, _ = exposition(lambda: SYSTEM)
    labels: dict[str, set[str]] = {}
    for line in body.decode().splitlines():
        if not line.startswith("#"):
            name = re.split(r"[{ ]", line)[0]
            labels.setdefault(name, set()).update(re.findall(r'(\w+)="', line))
    for rule in rules:
        names = set(_NAME.findall(rule["expr"]))
        assert names
        assert names <= labels.keys(), rule["alert"]
        used = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
        used |= set(re.findall(r"[{,](\w+)=", rule["expr"]))
        assert used <= set.intersection(*(labels[name] for name in names)), rule["alert"]


def test_rules_are_complete(rules: list[dict[str, Any]]) -> None:
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule["labels"]["severity"] in ("warning", "error")
        assert rule["annotations"].keys() == {"summary", "description"}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_accepts_the_rules() -> None:
    path = DEPLOY / "prometheus-rules.yml"
    subprocess.run(["promtool", "check", "rules", path], check=True, capture_output=True)


def test_prometheus_reads_the_rules(compose: dict[str, Any]) -> None:
    content = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    mounted = [each.split(":") for each in compose["services"]["prometheus"]["volumes"]]
    inside = {target: source for source, target, *_ in mounted}
    assert inside[f"/etc/prometheus/{content['rule_files'][0]}"] == "./prometheus-rules.yml"


def test_labels_of_the_board_exist(board: dict[str, Any]) -> None:
    """The legend of a series names labels that its metric has."""
    body, _ = exposition(lambda: SYSTEM)
    labels: dict[str, set[str]] = {}
    for line in body.decode().splitlines():
        if not line.startswith("#"):
            name = re.split(r"[{ ]", line)[0]
            labels.setdefault(name, set()).update(re.findall(r'(\w+)="', line))
    for panel in board["panels"]:
        for target in panel["targets"]:
            [name] = _NAME.findall(target["expr"])
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= labels[name], name


def test_panels_do_not_overlap(board: dict[str, Any]) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not taken & cells
        assert max(x for x, _ in cells) < 24
        taken |= cells
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_the_image_has_what_its_paths_name() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    for line in re.findall(r"^COPY (.+)$", text, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (DEPLOY.parent / source).exists()
    extras = re.search(r"\.\[(.+)\]", text)
    assert extras is not None
    project = (DEPLOY.parent / "pyproject.toml").read_text()
    for extra in extras[1].split(","):
        assert re.search(rf"^{extra} = \[", project, re.MULTILINE)
