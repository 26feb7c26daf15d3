"""The boards of `deploy/`: Grafana is not started here, but what they name exists."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.unit.deploy.exposed import check_expression, labels_of, metrics_of

DEPLOY = Path(__file__).parents[3] / "deploy"


@pytest.fixture(scope="module", params=["grafana.json", "grafana-bridge.json"])
def board(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DEPLOY / request.param).read_text())
    return found


def panels(board: dict[str, Any]) -> list[dict[str, Any]]:
    """All but the titles of rows."""
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def test_every_metric_and_label_exists(board: dict[str, Any]) -> None:
    """GIVEN a series of a panel THEN its metrics exist, with the labels that select, group and name
    it."""
    used: set[str] = set()
    for panel in panels(board):
        for target in panel["targets"]:
            check_expression(target["expr"], target["legendFormat"])
            used |= metrics_of(target["expr"])
    assert len(used) > 10


def test_variables_exist(board: dict[str, Any]) -> None:
    """GIVEN the variables of a board THEN their queries name existing metrics, and every variable
    that a series uses is one of them."""
    known = {"__rate_interval", "__all"}
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            check_expression(variable["query"])
        known.add(variable["name"])
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(board))) <= known


def test_every_series_is_of_the_chosen_job(board: dict[str, Any]) -> None:
    for panel in panels(board):
        for target in panel["targets"]:
            assert "job" in labels_of(target["expr"]), panel["title"]


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


def test_the_rows_of_the_board() -> None:
    board = json.loads((DEPLOY / "grafana.json").read_text())
    titles = [panel["title"] for panel in board["panels"] if panel["type"] == "row"]
    assert titles == ["Overview", "Pipelines", "Replicas", "Alerts"]
