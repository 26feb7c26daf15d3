from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

import tailrace
from tailrace import config
from tailrace.run.processes import follower_processes, processes, reads


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


@pytest.mark.parametrize(
    "file",
    [
        "compose.yml", "compose-run.yml", "kubernetes/tailrace.yml", "kubernetes/replicas.yml",
        "systemd/tailrace.service", "systemd/tailrace-follow.service",
    ],
)  # fmt: skip
def test_services_wait_for_all_processes(file: str) -> None:
    """GIVEN the files of `deploy` THEN a stop may take as long as the processes may take, one after
    another: the last one delivers the alerts."""
    sink = {"type": "nats", "url": "nats://127.0.0.1:1"}
    settings = {"replication": {"followers": ["127.0.0.1:7432"]}, "alerts": {}}
    given = config.Config.model_validate({**settings, "pipelines": {"a": {"sink": sink}}})
    needed = sum(each.stop_s for each in processes(given, Path("t.yml")))
    text = (Path(__file__).parents[3] / "deploy" / file).read_text()
    names = "stop_grace_period|TimeoutStopSec|terminationGracePeriodSeconds"
    seconds = re.findall(rf"(?:{names})[:=] ?(\d+)", text)
    assert seconds
    assert min(map(int, seconds)) > needed


@pytest.mark.parametrize(
    ("packages", "process"),
    [
        (("pipeline", "backfill", "snapshot", "parking", "sinks", "jetstream"), "pipelines"),
        (("replica",), "replicate"),
        (("capture",), "capture"),
    ],
)
def test_no_process_reads_a_section_that_it_does_not_declare(
    packages: tuple[str, ...], process: str
) -> None:
    """A reload would not restart the process for it. Capture reads where pipelines begin: see
    `tailrace.run.processes`."""
    source = Path(tailrace.__file__).parent
    undeclared = {name for name in config.Config.model_fields if not reads(process, (name,))}
    undeclared -= {"replication"} | ({"pipelines"} if process == "capture" else set())
    assert "http" in undeclared
    found = []
    files = [file for package in packages for file in (source / package).rglob("*.py")]
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in undeclared:
                owner = ast.unparse(node.value)
                if owner.rpartition(".")[2].lstrip("_") in ("config", "settings"):
                    found.append(f"{file.relative_to(source)}:{node.lineno} {owner}.{node.attr}")
    assert len(files) > 5
    assert found == []
