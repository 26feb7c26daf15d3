"""The rules of `deploy/`: what they name exists. promtool checks them where it is installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.deploy.exposed import check_expression

RULES = Path(__file__).parents[3] / "deploy" / "prometheus-rules.yml"


@pytest.fixture(scope="module")
def rules() -> list[dict[str, Any]]:
    content = yaml.safe_load(RULES.read_text())
    found: list[dict[str, Any]] = [rule for each in content["groups"] for rule in each["rules"]]
    return found


def test_every_metric_and_label_of_the_rules_exists(rules: list[dict[str, Any]]) -> None:
    """GIVEN a rule THEN its metrics exist, with the labels that it and its texts name."""
    for rule in rules:
        check_expression(rule["expr"], str(rule["annotations"]))


@pytest.mark.parametrize(
    ("expression", "texts"),
    [
        ("tailrace_no_such_metric == 0", ""),
        ('tailrace_lag_bytes{pipelin="a"} > 0', ""),
        ("sum by (table) (tailrace_lag_bytes)", ""),
        ("tailrace_lag_bytes > 0", "{{ $labels.table }}"),
        ("tailrace_lag_bytes > 0", "{{table}}"),
        ("up == 0", ""),
    ],
)
def test_what_does_not_exist_is_found(expression: str, texts: str) -> None:
    with pytest.raises(AssertionError):
        check_expression(expression, texts)


def test_rules_are_complete(rules: list[dict[str, Any]]) -> None:
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule["labels"]["severity"] in ("warning", "error")
        assert rule["annotations"].keys() == {"summary", "description"}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_accepts_the_rules() -> None:
    subprocess.run(["promtool", "check", "rules", RULES], check=True, capture_output=True)
