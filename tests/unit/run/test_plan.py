"""Plans: what a changed file would do, and that a reload does that."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tailrace import audit, checkpoint, config
from tailrace.access import password
from tailrace.checkpoint import StartRecord
from tailrace.errors import ConfigError
from tailrace.position import Lsn, Position
from tailrace.run import status
from tailrace.run.loaded import Digests, Order, loaded_file, order_file
from tailrace.run.plan import Effect, propose
from tailrace.run.plan_text import plan_document, plan_lines
from tailrace.run.processes import Roster, processes
from tailrace.run.reloads import Reloads, order_reload
from tailrace.run.supervisor import Supervisor
from tests.unit.run.launching import FakeLauncher

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.run.plan import Plan

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
HASH = password.hashed("correct horse")
Change = dict[str, Any]
"""Keys with dots and their new values; None removes a key."""


def nats(**keys: Any) -> dict[str, Any]:
    return {"type": "nats", "url": "nats://u:canary-old@127.0.0.1:1", **keys}


BASE: dict[str, Any] = {
    "source": {"dsn": "postgresql://u:canary-old@127.0.0.1/x", "slot": "s"},
    "log": {"path": "data/log"},
    "data": "data",
    "http": {
        "token": "canary-old-0123456789",
        "users": {"ann": {"role": "viewer", "password": HASH}},
    },
    "spark": {"conf": {"spark.secret.of": "canary-old"}},
    "alerts": {
        "channels": {"ops": {"webhook": {"url": "https://a.example/canary-old"}}},
    },
    "pipelines": {
        "orders": {"where": "after.id > 1", "sink": nats()},
        "hooks": {
            "encoding": "json",
            "sink": {
                "type": "http",
                "url": "https://example.com/canary-old",
                "headers": {"authorization": "canary-old"},
            },
        },
    },
}
FOLLOWED = {"followers": ["127.0.0.1:7432"], "mode": "sync"}


class Site:
    """A settings file, and a supervisor that has loaded it, over fake processes."""

    def __init__(self, folder: Path, **sections: Any) -> None:
        self.file = folder / "tailrace.yml"
        self.data = folder / "data"
        self.now = 1000.0
        self.values = {**BASE, **sections}
        self.write(self.values)
        loaded = config.load(self.file)
        specs = [replace(each, command=(each.name,)) for each in processes(loaded, self.file)]
        self.reloads = Reloads(self.file, self.data, lambda: config.load(self.file))
        self.launcher = FakeLauncher()
        where = status.folder(self.data)
        status.clear(where)
        self.supervisor = Supervisor(specs, where, self.launcher, settings=self.reloads)
        self.reloads.begin(loaded)
        self.tick()

    def write(self, values: dict[str, Any]) -> None:
        self.file.write_text(yaml.safe_dump({k: v for k, v in values.items() if v is not None}))

    def change(self, change: Change) -> Plan:
        """Write a changed file; its plan."""
        values: dict[str, Any] = json.loads(json.dumps(self.values))
        for key, value in change.items():
            *sections, name = key.split(".")
            inner = values
            for section in sections:
                inner = inner.setdefault(section, {})
            if value is None:
                del inner[name]
            else:
                inner[name] = value
        self.write(values)
        return self.plan()

    def plan(self) -> Plan:
        return propose(self.data)[1]

    def tick(self, times: int = 1) -> None:
        for _ in range(times):
            self.now += 1.1
            assert self.supervisor.tick(self.now)

    def restarted(self, order: Callable[[], object]) -> list[str]:
        """The processes that restart after `order`."""
        before = len(self.launcher.journal)
        order()
        self.tick(3)
        begun = self.launcher.journal[before:]
        return sorted(each.removeprefix("start ") for each in begun if each.startswith("start "))


def order_whatever_the_file_says(site: Site) -> None:
    """An order of a program that has not looked at the plan."""
    file = order_file(site.data)
    before = file.read()
    file.write(replace(before, number=before.number + 1) if before else Order(number=1))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


SINK = {"type": "nats", "url": "nats://127.0.0.1:1"}
PIPELINES = ["pipelines", "serve", "watch"]
OTHERS = ["serve", "watch"]
CLASSES: list[tuple[Change, list[tuple[str, str, Effect]], list[str]]] = [
    ({}, [], []),
    (
        {"pipelines.orders.where": "after.id > 3"},
        [("pipeline orders", "changed", Effect.PIPELINE)],
        PIPELINES,
    ),
    (
        {"pipelines.orders.sink.url": "nats://u:canary-new@127.0.0.1:1"},
        [("pipeline orders", "changed", Effect.PIPELINE)],
        PIPELINES,
    ),
    (
        {"pipelines.hooks.sink.headers.authorization": "canary-new"},
        [("pipeline hooks", "changed", Effect.PIPELINE)],
        PIPELINES,
    ),
    (
        {"pipelines.late": {"sink": SINK}},
        [("pipeline late", "added", Effect.PIPELINE)],
        PIPELINES,
    ),
    ({"pipelines.hooks": None}, [("pipeline hooks", "removed", Effect.PIPELINE)], PIPELINES),
    (
        {"pipelines.orders.backfill": {"tables": [{"table": "t"}]}},
        [("pipeline orders", "changed", Effect.PIPELINE)],
        PIPELINES,
    ),
    ({"pipelines.orders.start": "latest"}, [("pipeline orders", "changed", Effect.NOTHING)], []),
    (
        {"pipelines.hooks.start": "latest"},
        [("pipeline hooks", "changed", Effect.PIPELINE)],
        PIPELINES,
    ),
    ({"spark.master": "local[2]"}, [("section spark", "changed", Effect.PIPELINE)], PIPELINES),
    (
        {"spark.conf": {"spark.secret.of": "canary-new"}},
        [("section spark", "changed", Effect.PIPELINE)],
        PIPELINES,
    ),
    (
        {"telemetry": {"endpoint": "http://127.0.0.1:4318"}},
        [("section telemetry", "added", Effect.PIPELINE)],
        PIPELINES,
    ),
    ({"http.port": 9999}, [("section http", "changed", Effect.RELOAD)], OTHERS),
    (
        {"http.token": "canary-new-0123456789"},
        [("section http", "changed", Effect.RELOAD)],
        OTHERS,
    ),
    ({"http.users.ann.role": "operator"}, [("user ann", "changed", Effect.RELOAD)], OTHERS),
    (
        {"http.users.bob": {"role": "viewer", "password": HASH}},
        [("user bob", "added", Effect.RELOAD)],
        OTHERS,
    ),
    ({"http.users.ann": None}, [("user ann", "removed", Effect.RELOAD)], OTHERS),
    ({"alerts.stalled_s": 5}, [("section alerts", "changed", Effect.RELOAD)], OTHERS),
    (
        {"alerts.channels.ops.webhook.url": "https://a.example/canary-new"},
        [("alert channel ops", "changed", Effect.RELOAD)],
        OTHERS,
    ),
    (
        {"alerts.channels.mail": {"command": {"argv": ["true"]}}},
        [("alert channel mail", "added", Effect.RELOAD)],
        OTHERS,
    ),
    ({"alerts.channels.ops": None}, [("alert channel ops", "removed", Effect.RELOAD)], OTHERS),
    ({"replication": {"node": "a"}}, [("section replication", "changed", Effect.NOTHING)], []),
    ({"alerts.supervised": False}, [("section alerts", "changed", Effect.RUN)], []),
    (
        {"replication": {"followers": ["127.0.0.1:7432"]}},
        [("section replication", "changed", Effect.RUN)],
        [],
    ),
    ({"source.slot": "other"}, [("section source", "changed", Effect.RUN)], []),
    ({"source.dsn": "host=canary-new"}, [("section source", "changed", Effect.RUN)], []),
    ({"log.keep_hours": 1}, [("section log", "changed", Effect.RUN)], []),
    ({"capture": {"messages": False}}, [("section capture", "changed", Effect.RUN)], []),
    ({"data": "elsewhere"}, [("section data", "changed", Effect.RUN)], []),
    (
        {"pipelines": {}},
        [
            ("pipeline hooks", "removed", Effect.RUN),
            ("pipeline orders", "removed", Effect.RUN),
        ],
        [],
    ),
    ({"http.host": "0.0.0.0"}, [("section http", "changed", Effect.REFUSED)], []),
]


@pytest.mark.parametrize(
    ("change", "objects", "restarts"), CLASSES, ids=lambda each: str(each)[:60]
)
def test_a_reload_does_what_the_plan_says(
    site: Site, change: Change, objects: list[tuple[str, str, Effect]], restarts: list[str]
) -> None:
    """GIVEN a running system WHEN its file changes THEN the plan names the objects and the effect,
    and a reload restarts the processes of the plan, or none if the plan says that it is refused."""
    _has_run(site, "orders")
    plan = site.change(change)
    assert [(each.title, each.action, each.effect) for each in plan.objects] == objects
    blocked = any(effect.blocks for _, _, effect in objects)
    assert bool(plan.blocked) == blocked
    if not blocked:
        assert sorted(plan.processes) == restarts
        effects = {effect for _, _, effect in objects}
        assert ("pipelines" in plan.processes) == (Effect.PIPELINE in effects)
    before = loaded_file(site.data).read()
    assert before is not None
    restarted = site.restarted(lambda: order_whatever_the_file_says(site))
    loaded = loaded_file(site.data).read()
    assert loaded is not None
    assert loaded.orders == 1
    assert restarted == restarts
    if blocked:
        assert loaded.refusal
        assert loaded.settings == before.settings
    else:
        assert not loaded.refusal
        assert site.plan().objects == ()


@pytest.mark.parametrize(("change", "objects", "_restarts"), CLASSES, ids=lambda e: str(e)[:60])
def test_no_secret_is_in_a_plan_or_a_file(
    site: Site, change: Change, objects: object, _restarts: object
) -> None:
    """GIVEN secrets in every place WHEN one changes THEN the plan says so, and neither it nor a
    file of the folder has the old or the new one."""
    del objects
    plan = site.change(change)
    texts = [*plan_lines(plan), json.dumps(plan_document(plan)), repr(plan)]
    if not plan.blocked and plan.objects:
        order_reload(site.data, plan, user="ann", reason="why")
        site.tick(3)
    files = [each for each in site.data.rglob("*") if each.is_file()]
    assert len(files) >= 3
    texts += [each.read_bytes().decode("latin-1") for each in files]
    assert "canary" not in "".join(texts)
    assert HASH not in "".join(texts)
    for each in files:
        assert stat.S_IMODE(each.stat().st_mode) & 0o077 == 0 or each.parent.name == "status", each
    if "canary" in str(change):
        [key] = [key for each in plan.objects for key in each.keys]
        assert key.secret
        assert any("changed (secret)" in line for line in plan_lines(plan))


def _has_run(site: Site, pipeline: str) -> None:
    folder = checkpoint.folder_of(site.data, pipeline)
    checkpoint.write_start(folder, StartRecord(Position(Lsn(1), 0), "a1"))


def test_a_restarted_process_keeps_its_settings_known(site: Site) -> None:
    """A second start has the same key, so that the same secret has the same digest."""
    before = loaded_file(site.data).read()
    again = Reloads(site.file, site.data, lambda: config.load(site.file))
    again.begin(config.load(site.file))
    after = loaded_file(site.data).read()
    assert before is not None
    assert after is not None
    assert before.settings == after.settings
    assert "hmac-sha256:" in before.settings["source"]["dsn"]


def test_digests_need_the_key(site: Site, tmp_path: Path) -> None:
    """Without the key, equal secrets look different: guesses cannot be tried on the file alone."""
    loaded = config.load(site.file)
    here = Digests.of(site.data).document(loaded)
    other = Digests.create(tmp_path / "other").document(loaded)
    assert here["source"]["dsn"] != other["source"]["dsn"]
    assert here["pipelines"]["orders"]["sink"]["url"] != here["source"]["dsn"]
    with pytest.raises(ConfigError, match="no settings are known"):
        Digests.of(tmp_path / "none")


def test_a_file_that_changed_after_the_plan_is_refused(site: Site) -> None:
    plan = site.change({"pipelines.orders.where": "after.id > 3"})

    def apply_late() -> None:
        order_reload(site.data, plan, user="ann")
        site.change({"pipelines.orders.where": "after.id > 4"})

    assert site.restarted(apply_late) == []
    loaded = loaded_file(site.data).read()
    assert loaded is not None
    assert "is not what the plan has shown" in loaded.refusal
    order_reload(site.data, site.plan(), user="ann")
    assert site.restarted(lambda: None) == PIPELINES
    assert [each["action"] for each in audit.latest(site.data, limit=5)] == ["settings.apply"] * 2


def test_an_invalid_file_changes_nothing(site: Site) -> None:
    site.file.write_text("pipelines: {orders: {wher: x}}\n")
    with pytest.raises(ConfigError, match="did you mean where"):
        site.plan()
    assert site.restarted(lambda: order_whatever_the_file_says(site)) == []
    loaded = loaded_file(site.data).read()
    assert loaded is not None
    assert "did you mean where" in loaded.refusal
    assert loaded.settings["pipelines"]["orders"]["where"] == "after.id > 1"


def test_a_signal_restarts_all_and_is_refused_as_an_order_is(site: Site) -> None:
    """Files of certificates may have changed, which no plan shows."""
    assert site.restarted(site.supervisor.reload) == PIPELINES
    site.change({"source.slot": "other", "pipelines.orders.where": "after.id > 3"})
    assert site.restarted(site.supervisor.reload) == []
    with pytest.raises(ConfigError, match=r"restart of `tailrace run` is needed for source\.slot"):
        order_reload(site.data, site.plan(), user="ann")
    assert order_file(site.data).read() is None
    assert audit.latest(site.data, limit=5) == []


def test_an_order_from_before_the_start_has_no_effect(site: Site) -> None:
    order_whatever_the_file_says(site)
    site.reloads.begin(config.load(site.file))
    assert not site.reloads.ordered()


def test_an_option_wins_over_the_file(tmp_path: Path) -> None:
    """GIVEN a slot that was set by an option WHEN the file has another one THEN that is no
    difference: a reload has the option, too."""
    site = Site(tmp_path)
    loaded = config.load(site.file, {"source": {"slot": "given"}})
    options = Reloads(site.file, site.data, lambda: loaded, overridden=(("source", "slot"),))
    options.begin(loaded)
    plan = site.plan()
    assert plan.objects == ()
    assert "source.slot is set by an option" in "".join(plan_lines(plan))
    assert site.change({"http.port": 1}).objects[0].title == "section http"


def test_notes_say_where_a_pipeline_begins(site: Site) -> None:
    _has_run(site, "former")
    plan = site.change({"pipelines.former": {"sink": SINK}, "pipelines.hooks": None})
    text = "\n".join(plan_lines(plan))
    assert "it has run before, and resumes at its checkpoint" in text
    assert "tailrace log unpin hooks" in text
    plan = site.change({"pipelines.late": {"sink": SINK, "start": "latest"}})
    assert "it begins at latest" in "\n".join(plan_lines(plan))


def test_the_first_pipeline_and_the_watchdog_are_processes(tmp_path: Path) -> None:
    site = Site(tmp_path, pipelines={}, alerts=None)
    plan = site.change({"pipelines.a": {"sink": SINK}, "alerts": {}})
    assert {each.title: (each.action, each.effect) for each in plan.objects} == {
        "pipeline a": ("added", Effect.RUN),
        "section alerts": ("added", Effect.RUN),
    }
    assert plan.objects[1].reasons[0] == "the first pipeline needs the process pipelines"


@pytest.mark.parametrize("followers", [[], ["127.0.0.1:7432"]])
@pytest.mark.parametrize("pipelines", [{}, {"a": {"sink": SINK}}])
@pytest.mark.parametrize("alerts", [None, {}, {"supervised": False}])
def test_a_roster_names_the_processes(
    tmp_path: Path, followers: list[str], pipelines: dict[str, Any], alerts: dict[str, Any] | None
) -> None:
    """Plans and the supervisor agree on which processes there are."""
    values = {"replication": {"followers": followers}, "pipelines": pipelines, "alerts": alerts}
    loaded = config.Config.model_validate(values)
    document = Digests.create(tmp_path).document(loaded)
    assert Roster.of(document).names == tuple(e.name for e in processes(loaded, Path("t.yml")))


def test_what_capture_waits_for_needs_a_restart(tmp_path: Path) -> None:
    site = Site(tmp_path, replication=FOLLOWED)
    plan = site.change({"replication.mode": "async"})
    assert [each.effect for each in plan.objects] == [Effect.RUN]
    assert plan.objects[0].reasons == ("the process capture reads it when it starts",)


def test_a_leaders_connections_to_followers_restart(tmp_path: Path) -> None:
    site = Site(tmp_path, replication=FOLLOWED)
    plan = site.change({"replication.heartbeat_s": 3})
    assert [each.effect for each in plan.objects] == [Effect.PIPELINE]
    assert "replicate" in plan.processes
    assert site.restarted(lambda: order_reload(site.data, plan, user="ann")) == [
        "pipelines", "replicate", "serve", "watch",
    ]  # fmt: skip


def test_what_the_supervisor_reads_needs_a_restart_of_it(tmp_path: Path) -> None:
    site = Site(tmp_path, replication=FOLLOWED)
    plan = site.change({"replication.takeover": "auto"})
    found = [(each.effect, each.reasons) for each in plan.objects]
    assert found == [(Effect.RUN, ("`tailrace run` reads it when it starts",))]


@pytest.mark.parametrize("content", [None, b"{"])
def test_orders_after_their_file_is_lost(site: Site, content: bytes | None) -> None:
    """GIVEN orders that were carried out WHEN their file is lost or damaged THEN the next order is
    a new one, and is carried out."""
    for port in (9991, 9992):
        plan = site.change({"http.port": port})
        assert site.restarted(lambda plan=plan: order_reload(site.data, plan, user="ann"))  # type: ignore[misc]
    path = order_file(site.data).path
    path.unlink() if content is None else path.write_bytes(content)
    plan = site.change({"http.port": 9993})
    assert site.restarted(lambda: order_reload(site.data, plan, user="ann")) == OTHERS
    assert not site.plan().objects
