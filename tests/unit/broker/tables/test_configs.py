from __future__ import annotations

import pytest

from tailrace.broker.tables.configs import SETTINGS, problem


def test_defaults_are_valid() -> None:
    assert problem({name: setting.default for name, setting in SETTINGS.items()}) == ""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention.ms", "0"),
        ("retention.ms", "-1"),
        ("retention.bytes", "1000"),
        ("message.timestamp.type", "LogAppendTime"),
        ("tailrace.unlogged", "true"),
    ],
)
def test_valid_settings(name: str, value: str) -> None:
    assert problem({name: value}) == ""


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("retention.ms", "soon", "retention.ms must be -1 or a larger number, got 'soon'"),
        ("retention.ms", "-2", "retention.ms must be -1 or a larger number, got '-2'"),
        ("retention.bytes", None, "retention.bytes must be -1 or a larger number, got None"),
        ("cleanup.policy", "compact", "cleanup.policy must be delete, got 'compact'"),
        ("tailrace.unlogged", "yes", "tailrace.unlogged must be true or false, got 'yes'"),
    ],
)
def test_invalid_settings(name: str, value: str | None, message: str) -> None:
    assert problem({"compression.type": "producer", name: value}) == message


def test_an_unknown_setting() -> None:
    assert problem({"no.such": "1"}).startswith("unknown setting no.such: must be one of ")
