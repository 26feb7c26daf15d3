"""`tailrace plan`, `apply` and `export` over the state of a run."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tailrace import audit, config
from tailrace.observe.figures import ProcessFigures
from tailrace.run import status
from tailrace.run.loaded import loaded_file, order_file
from tailrace.run.reloads import Reloads
from tailrace.run.status import RunStatus
from tests.command import call

if TYPE_CHECKING:
    from pathlib import Path


class Site:
    """A settings file that `tailrace run` has loaded."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "tailrace.yml"
        self.data = folder / "data"
        self.values: dict[str, Any] = {
            "data": "data",
            "source": {"dsn": "host=canary"},
            "log": {"path": "data/log"},
        }
        self.write()
        loaded = config.load(self.file)
        self.reloads = Reloads(self.file, self.data, lambda: config.load(self.file))
        self.reloads.begin(loaded)

    def write(self, **sections: Any) -> None:
        self.values |= sections
        self.file.write_text(yaml.safe_dump(self.values))

    def runs(self) -> None:
        where = status.folder(self.data)
        status.clear(where)
        processes = {"serve": ProcessFigures(state="running", up=True, pid=1)}
        status.write(where, "run", RunStatus(started_at=time.time(), processes=processes))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(status, "STALE_S", 3600.0)
    return Site(tmp_path)


def test_no_difference(site: Site) -> None:
    found = call("plan", "-c", site.file)
    assert found.returncode == 0
    assert found.stdout == "No difference: the file has the settings that run.\n"


def test_a_difference(site: Site) -> None:
    site.write(http={"port": 1}, source={"dsn": "host=canary-new"})
    found = call("plan", "-c", site.file)
    assert found.returncode == 2
    assert "~ section http: changed; effect: reload\n    port: 9090 → 1\n" in found.stdout
    assert "dsn: changed (secret)" in found.stdout
    assert "canary" not in found.stdout + found.stderr
    document = json.loads(call("plan", "-c", site.file, "--json").stdout)
    assert [each["object"] for each in document["objects"]] == ["section source", "section http"]
    assert not document["applicable"]


def test_errors_are_not_a_difference(site: Site, tmp_path: Path) -> None:
    """GIVEN a file that is invalid, or a folder without a run THEN the exit code is 1."""
    site.write(log={"pathh": "x"})
    found = call("plan", "-c", site.file)
    assert found.returncode == 1
    assert "log.pathh: unknown key, did you mean path?" in found.stderr
    site.values["log"] = {}
    site.write()
    found = call("plan", "-c", site.file, "--data", tmp_path / "none")
    assert found.returncode == 1
    assert "no settings are known to run" in found.stderr


def test_another_data_folder_in_the_file(site: Site) -> None:
    """GIVEN a file with another `data` WHEN the folder of the run is given THEN it is compared."""
    data = site.data
    site.write(data="other")
    found = call("plan", "-c", site.file, "--data", data)
    assert found.returncode == 2
    assert "~ section data: changed; effect: restart of tailrace run" in found.stdout


def test_apply_needs_a_run_and_its_file(site: Site, tmp_path: Path) -> None:
    site.write(http={"port": 1})
    found = call("apply", "-c", site.file, "--yes")
    assert found.returncode == 2
    assert "does not run on the data folder" in found.stderr
    site.runs()
    other = tmp_path / "other.yml"
    other.write_text(site.file.read_text())
    found = call("apply", "-c", other, "--yes")
    assert found.returncode == 2
    assert f"reads {site.file}, not {other}" in found.stderr
    assert order_file(site.data).read() is None


def test_apply_refuses_what_needs_a_restart(site: Site) -> None:
    site.runs()
    site.write(http={"port": 1}, capture={"messages": False})
    found = call("apply", "-c", site.file, "--yes")
    assert found.returncode == 2
    assert "a restart of `tailrace run` is needed for capture.messages" in found.stderr
    assert "port: 9090 → 1" in found.stdout
    assert order_file(site.data).read() is None


def test_apply_asks(site: Site) -> None:
    site.runs()
    assert call("apply", "-c", site.file).stdout.startswith("No difference")
    site.write(http={"port": 1})
    found = call("apply", "-c", site.file, stdin="n\n")
    assert found.returncode == 1
    assert "Apply? [y/N]" in found.stdout
    assert order_file(site.data).read() is None


def test_apply_says_that_nothing_answers(site: Site) -> None:
    """GIVEN a supervisor that hangs THEN the command ends with an error, and has recorded who."""
    site.runs()
    site.write(http={"port": 1})
    found = call("apply", "-c", site.file, "--timeout", "1", "--reason", "why", stdin="y\n")
    assert found.returncode == 8
    assert "`tailrace run` has not answered within the given time" in found.stderr
    [entry] = audit.latest(site.data, limit=5)
    assert (entry["action"], entry["reason"]) == ("settings.apply", "why")
    assert entry["user"]


def test_export(site: Site) -> None:
    found = call("export", "-c", site.file)
    assert found.returncode == 0
    assert yaml.safe_load(found.stdout) == {
        "source": {"dsn": "${TAILRACE_SOURCE_DSN}"},
        "log": {"path": str(site.data / "log")},
        "data": str(site.data),
    }
    assert "#   TAILRACE_SOURCE_DSN: source.dsn" in found.stdout
    loaded_file(site.data).remove()
    assert call("export", "-c", site.file).returncode == 2
