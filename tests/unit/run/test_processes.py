from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailrace import config
from tailrace.run.processes import processes


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
