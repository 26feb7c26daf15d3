"""`tailrace plan`, `apply` and `export` on a running system, with its pipelines, NATS and HTTP."""

from __future__ import annotations

import json
import re
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tailrace import config
from tailrace.run.loaded import loaded_file
from tests.command import run
from tests.integration.console.running import ROWS, Browser, Running
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from subprocess import CompletedProcess

    from tailrace.testing import EmbeddedNats
    from tests.fix_postgres import Database

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


class Applied(Running):
    """A running system whose settings file is edited."""

    def edit(self) -> dict[str, Any]:
        values: dict[str, Any] = yaml.safe_load((self.folder / "tailrace.yml").read_text())
        return values

    def write(self, values: dict[str, Any]) -> None:
        (self.folder / "tailrace.yml").write_text(yaml.safe_dump(values))

    def command(self, *words: str) -> CompletedProcess[str]:
        return run(*words, folder=self.folder)

    def pids(self) -> dict[str, int]:
        """Of the processes; empty while the server restarts."""
        processes = self.status().get("processes", {})
        return {name: each["pid"] for name, each in processes.items()}


@pytest.fixture
def applied(
    database: Database, nats_server: EmbeddedNats, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Applied]:
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")
    database.execute("CREATE PUBLICATION tailrace FOR TABLE orders")
    slot = "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')"
    database.query(slot, database.name[-63:])
    with Applied(tmp_path_factory.mktemp("apply"), database, nats_server) as system:
        system.start()
        _insert(system, 1, ROWS)
        system.wait_until(lambda: system.events("shop") >= ROWS, "delivery to NATS")
        yield system
        system.stop()
    system.close()


def _insert(system: Applied, first: int, last: int) -> None:
    system.database.execute(
        f"INSERT INTO orders SELECT g, 'n' FROM generate_series({first}, {last}) g"
    )


def test_a_changed_file_is_applied(applied: Applied) -> None:
    """GIVEN a running system WHEN its file is edited THEN `plan` says what `apply` then does:
    a filter, a pipeline and a user without an interruption of capture, a slot not at all."""
    _what_runs_can_be_exported(applied)
    _a_filter_and_a_pipeline(applied)
    _a_button(applied)
    _a_slot_needs_a_restart(applied)
    _an_invalid_file(applied)


def _what_runs_can_be_exported(applied: Applied) -> None:
    assert applied.command("plan").returncode == 0
    exported = applied.command("export")
    assert exported.returncode == 0, exported.stderr
    named = re.findall(r"^#   (\w+): ([\w.]+)$", exported.stdout, re.M)
    written = applied.folder / "exported.yml"
    text = exported.stdout
    for variable, key in named:
        value: Any = applied.edit()
        for part in key.split("."):
            value = value[part]
        assert value not in exported.stdout
        text = text.replace(f"${{{variable}}}", value)
    written.write_text(text)
    here = config.absolute(config.load(applied.folder / "tailrace.yml"))
    assert config.load(written) == here
    compared = applied.command("plan", "-c", "exported.yml")
    assert compared.returncode == 0, compared.stdout


def _a_filter_and_a_pipeline(applied: Applied) -> None:
    before = applied.pids()
    values = applied.edit()
    values["pipelines"]["shop"]["where"] = f"after.id <> {ROWS + 1}"
    stream = f"L{applied.database.name}"
    values["pipelines"]["late"] = {
        "encoding": "json",
        "sink": {
            "type": "nats",
            "url": applied.server.url,
            "stream": {"name": stream, "subjects": [f"late.{applied.database.name}.>"]},
            "subject": f"late.{applied.database.name}.{{table}}",
        },
    }
    applied.write(values)
    planned = applied.command("plan", "--json")
    assert planned.returncode == 2
    plan = json.loads(planned.stdout)
    assert {each["object"]: each["action"] for each in plan["objects"]} == {
        "pipeline shop": "changed",
        "pipeline late": "added",
    }
    assert plan["restarts"] == ["pipelines", "serve"]
    done = applied.command("apply", "--yes", "--reason", "new filter")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "pipeline shop: running" in done.stdout
    assert "pipeline late: running" in done.stdout
    after = applied.pids()
    assert after["capture"] == before["capture"]
    assert {name for name in after if after[name] != before[name]} == set(plan["restarts"])
    _insert(applied, ROWS + 1, ROWS + 2)
    wait_for(lambda: len(applied.received()) >= ROWS + 1, applied.status)
    wait_for(lambda: applied.events("late") >= ROWS + 2, applied.status)
    texts = [each.payload.decode() for each in applied.received()]
    ids = {int(found[1]) for text in texts if (found := re.search(r'"id": ?(\d+),', text))}
    assert ids == {*range(1, ROWS + 1), ROWS + 2}
    assert applied.command("plan").returncode == 0
    entry = json.loads((applied.data / "audit.jsonl").read_text().splitlines()[-1])
    assert (entry["action"], entry["reason"]) == ("settings.apply", "new filter")
    assert entry["changes"] == ["pipeline shop changed", "pipeline late added"]


def _a_button(applied: Applied) -> None:
    """The same from the console, for a change that only the endpoints read."""
    before = applied.pids()
    values = applied.edit()
    values["http"]["hosts"] = ["tailrace.example"]
    applied.write(values)
    with closing(Browser(applied)) as browser:
        browser.log_in()
        page = browser.get("/console/settings")
        assert "section http: changed" in page.text
        [link] = [each["href"] for each in page.all("a") if "settings/apply" in each["href"]]
        browser.press("/console/settings/apply", plan=link.partition("plan=")[2], reason="host")
    wait_for(lambda: applied.pids().get("serve", before["serve"]) != before["serve"])
    assert {name for name, pid in applied.pids().items() if pid != before[name]} == {"serve"}
    assert applied.command("plan").returncode == 0
    entry = json.loads((applied.data / "audit.jsonl").read_text().splitlines()[-1])
    assert (entry["action"], entry["user"]) == ("settings.apply", "http")


def _a_slot_needs_a_restart(applied: Applied) -> None:
    before, original = applied.pids(), applied.edit()
    values = applied.edit()
    values["source"]["slot"] = "another"
    values["pipelines"]["shop"]["where"] = ""
    applied.write(values)
    refused = applied.command("apply", "--yes")
    assert refused.returncode == 2
    assert "a restart of `tailrace run` is needed for source.slot" in refused.stderr
    loaded = loaded_file(applied.data).read()
    assert loaded is not None
    assert loaded.settings["pipelines"]["shop"]["where"]
    assert applied.pids() == before
    applied.write(original)


def _an_invalid_file(applied: Applied) -> None:
    """GIVEN a file that is valid when it is shown, and not when it is loaded THEN the run says why,
    and goes on with the settings that it has."""
    before, original = applied.pids(), applied.edit()
    applied.write({**original, "lag": {}})
    refused = applied.command("apply", "--yes")
    assert refused.returncode == 2
    assert "lag: unknown key, did you mean log?" in refused.stderr
    assert applied.pids() == before
    applied.write(original)
    assert applied.command("plan").returncode == 0
