"""A sink from another package: installed with pip, found by its entry point, used by a pipeline."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.command import Service, run
from tests.waiting import LONG_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fix_capture import Captured
    from tests.fix_postgres import Database

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "lines-sink"
version = "1.0"

[project.entry-points."tailrace.sinks"]
lines = "lines_sink:SINK"
"""
MODULE = '''
"""A sink that appends one JSON line per message to a file."""

import json
import os
from pathlib import Path
from typing import Literal

from tailrace.sinks.contract import Receipt
from tailrace.sinks.destination import Template
from tailrace.sinks.sink_type import Promises, SinkSettings, SinkType


class LinesSettings(SinkSettings):
    """Lines of a file."""

    type: Literal["lines"]
    path: Path
    name: str = "{table}/{operation}"

    @property
    def template(self):
        return self.name


class Name(Template):
    kind = "name"

    @staticmethod
    def token(name):
        return name.upper()


class Lines:
    def __init__(self, path):
        self._path, self._waiting = path, []

    def open(self, after):
        pass

    def inspect(self, batch):
        return {}

    def write(self, batch):
        self._waiting += batch.select(["destination", "id", "payload"]).to_pylist()

    def flush(self, *, end=True):
        waiting, self._waiting = self._waiting, []
        with self._path.open("a") as file:
            for message in waiting:
                file.write(json.dumps({k: v.decode() for k, v in message.items()}) + "\\n")
            file.flush()
            os.fsync(file.fileno())
        return Receipt(messages=len(waiting), bytes=sum(len(m["payload"]) for m in waiting))

    def close(self):
        pass


class LinesType(SinkType):
    """Appends lines."""

    name = "lines"
    title = "A file of lines"
    settings = LinesSettings
    promises = Promises(
        delivery="at least once", order="total", duplicates="none", largest_message="none",
        batch="none",
    )

    def destination(self, template, *, database):
        return Name(template, database=database)

    def open(self, settings, lane):
        return Lines(settings.path)

    def probe(self, settings, *, name):
        settings.path.parent.stat()


SINK = LinesType()
'''


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The folder that the package was installed into."""
    project, target = tmp_path / "project", tmp_path / "site"
    project.mkdir()
    (project / "pyproject.toml").write_text(PROJECT)
    (project / "lines_sink.py").write_text(MODULE)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run(
        [*pip, "--no-build-isolation", "--target", str(target), str(project)], check=True
    )
    return target


def test_an_installed_sink_delivers(
    database: Database, capture: Callable[..., Captured], installed: Path, tmp_path: Path
) -> None:
    # GIVEN a table with changes in the log, and a settings file that names the installed sink
    database.execute("CREATE TABLE items (id int PRIMARY KEY, name text)")
    captured = capture(database)
    database.execute("INSERT INTO items SELECT n, 'item ' || n FROM generate_series(1, 50) n")
    captured.catch_up()
    lines = tmp_path / "lines.jsonl"
    settings = {
        "source": {"dsn": database.dsn, "slot": captured.slot},
        "log": {"path": str(captured.folder)},
        "data": str(tmp_path / "data"),
        "pipelines": {"p": {"shape": "plain", "sink": {"type": "lines", "path": str(lines)}}},
    }
    config = tmp_path / "tailrace.yml"
    config.write_text(yaml.safe_dump(settings))
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = os.pathsep.join([str(installed), *filter(None, inherited)])
    environment = {"PYTHONPATH": path}

    # WHEN the settings are checked and the pipelines run
    checked = run("check", "--all", config, env=environment, timeout_s=LONG_S)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "A file of lines answers" in checked.stdout
    service = Service("pipelines", "-c", config, folder=tmp_path, env=environment)
    with service.start() as pipelines:
        pipelines.wait_until(
            lambda: lines.exists() and len(lines.read_text().splitlines()) >= 50,
            "50 lines are delivered",
        )
        assert pipelines.stop() == 0, pipelines.output[-4000:]

    # THEN every change is there once, in order, where the sink's own template puts it
    messages = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [json.loads(each["payload"])["after"]["id"] for each in messages] == list(range(1, 51))
    assert {each["destination"] for each in messages} == {"ITEMS/insert"}
    assert len({each["id"] for each in messages}) == 50
