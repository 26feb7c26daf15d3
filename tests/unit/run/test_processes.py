from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailrace import config
from tailrace.run.processes import follower_processes, processes


@pytest.mark.parametrize(
    ("pipelines", "names"),
    [({}, ["capture", "serve"]), ({"a": {}}, ["capture", "pipelines", "serve"])],
)
def test_the_processes_of_a_config(
    tmp_path: Path, pipelines: dict[str, Any], names: list[str]
) -> None:
    sink = {"type": "nats", "url": "nats://127.0.0.1:1"}
    values = {
        "log": {"path": str(tmp_path / "log")},
        "pipelines": {name: {"sink": sink} for name in pipelines},
    }
    loaded = config.Config.model_validate(values)
    specs = {each.name: each for each in processes(loaded, Path("t.yml"), metrics_lines=True)}
    assert list(specs) == names
    assert specs["capture"].command[-3:] == ("capture", "-c", "t.yml")
    assert not specs["capture"].reloads
    assert specs["serve"].command[-2:] == ("--supervised", "--metrics-lines")
    assert not specs["serve"].worker
    if pipelines:
        assert specs["pipelines"].idle()


@pytest.mark.parametrize(
    ("alerts", "names"),
    [
        (None, ["capture", "serve"]),
        ({}, ["capture", "serve", "watch"]),
        ({"supervised": False}, ["capture", "serve"]),
    ],
)
def test_the_watchdog_stops_last(alerts: dict[str, Any] | None, names: list[str]) -> None:
    """Its own end must not be before it has delivered what the end of the others has to say."""
    loaded = config.Config.model_validate({} if alerts is None else {"alerts": alerts})
    specs = processes(loaded, Path("t.yml"))
    assert [each.name for each in specs] == names
    assert not specs[-1].worker
    followers = follower_processes(loaded, Path("t.yml"))
    assert [each.name for each in followers] == ["follow", *names[1:]]
    if names[-1] == "watch":
        assert specs[-1].command[-3:] == ("watch", "-c", "t.yml")
        assert followers[-1].command[-1] == "--follower"
