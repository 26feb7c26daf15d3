"""The page Settings: what runs, what the file says, the difference, and the button."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import ConfigError
from tailrace.run.loaded import order_file
from tests.unit.console.edited import Settings
from tests.unit.console.house import HASH, House, Visitor

if TYPE_CHECKING:
    from pathlib import Path

APPLY = "/console/settings/apply"


@pytest.fixture
def settings(house: House) -> Settings:
    house.healthy()
    return Settings(house)


def test_without_a_difference(settings: Settings, operator: Visitor) -> None:
    page = operator.page("/console/settings")
    assert str(settings.file) in page.text
    assert "the file has the settings that run" in page.text
    assert not [link for link in page.all("a") if APPLY in link["href"]]
    refused = operator.page(f"{APPLY}?plan=x")
    assert "nothing to apply" in refused.text


def test_a_change_is_shown_and_applied(settings: Settings, operator: Visitor) -> None:
    """GIVEN a changed file WHEN the page is loaded THEN it has the difference and its effect, and
    its button orders a reload, which is recorded."""
    settings.values["pipelines"]["shop"]["where"] = "after.id > 3 <b>"
    settings.values["pipelines"]["late"] = settings.values["pipelines"]["shop"]
    settings.write()
    page = operator.page("/console/settings")
    for text in (
        "pipeline shop: changed", "pipelines.shop.where", "after.id > 3 <b>", "pipeline restart",
        "pipeline late: added", "A reload restarts pipelines, serve. Capture continues.",
    ):  # fmt: skip
        assert text in page.text, text
    assert "<b>" not in page.source
    [link] = [each["href"] for each in page.all("a") if APPLY in each.get("href", "")]
    confirmation = operator.page(link)
    assert "~ pipeline shop: changed; effect: pipeline restart" in confirmation.text
    assert "log in again" in confirmation.text
    assert order_file(settings.house.data).read() is None
    answer = operator.do(APPLY, plan=link.partition("plan=")[2], reason="filter")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/console/settings"
    order = order_file(settings.house.data).read()
    assert order is not None
    assert (order.number, order.user, order.reason) == (1, "http", "filter")
    entry = json.loads(settings.house.audit())
    assert (entry["action"], entry["user"], entry["reason"]) == ("settings.apply", "http", "filter")
    assert entry["changes"] == ["pipeline shop changed", "pipeline late added"]
    assert settings.reloads.ordered()
    settings.reloads.reload()
    assert "the file has the settings that run" in operator.page("/console/settings").text


def test_a_plan_that_is_old_is_refused(settings: Settings, operator: Visitor) -> None:
    settings.values["http"] = {"port": 1}
    settings.write()
    plan = operator.get("/api/v1/settings").json()["plan"]
    settings.values["http"] = {"port": 2}
    settings.write()
    answer = operator.submit(APPLY, csrf=operator.csrf, plan=plan["digest"])
    assert answer.status_code == 409
    assert "has changed since the plan was shown" in answer.text
    assert not settings.house.audit()


def test_what_needs_a_restart_has_no_button(settings: Settings, operator: Visitor) -> None:
    settings.values["source"]["slot"] = "other"
    settings.write()
    page = operator.page("/console/settings")
    assert "restart of tailrace run" in page.text
    assert "A reload is refused as a whole because of: section source." in page.text
    assert not [link for link in page.all("a") if APPLY in link.get("href", "")]
    refused = operator.page(f"{APPLY}?plan=x")
    assert "This is not possible" in refused.text
    assert operator.submit(APPLY, csrf=operator.csrf).status_code == 409


def test_the_api_has_plan_and_action(settings: Settings, operator: Visitor) -> None:
    settings.values["http"] = {"port": 1}
    settings.write()
    document = operator.get("/api/v1/settings").json()
    assert document["settings"]["http"]["port"] == 9090
    assert document["loaded"]["file"] == str(settings.file)
    assert document["plan"]["applicable"]
    [change] = document["plan"]["objects"]
    assert (change["object"], change["effect"]) == ("section http", "reload")
    assert change["keys"] == [
        {"key": "http.port", "secret": False, "effect": "reload", "old": 9090, "new": 1}
    ]
    headers = {"authorization": "Bearer 0123456789abcdef", "content_type": "application/json"}
    body = json.dumps({"plan": document["plan"]["digest"]})
    path = "/api/v1/settings/apply"
    shown = operator.ask("POST", f"{path}?dry_run=true", content=body, **headers)
    assert "A reload restarts serve. Capture continues." in shown.json()["effect"]
    assert order_file(settings.house.data).read() is None
    done = operator.ask("POST", path, content=body, **headers)
    assert done.status_code == 202, done.text
    assert done.json()["restarts"] == ["serve"]


def test_secrets_of_the_file_are_not_shown(settings: Settings, operator: Visitor) -> None:
    """GIVEN a secret that changes, and a file that is invalid beside a secret WHEN the page is
    loaded THEN it has neither secret."""
    settings.values["source"]["dsn"] = "postgresql://u:canary-new@127.0.0.1:1/x"
    settings.write()
    page = operator.page("/console/settings")
    assert "changed; the values are secret" in page.text
    document = operator.get("/api/v1/settings").text
    assert "canary" not in page.source + document
    assert "hmac" not in page.source + document
    settings.values["source"]["slot"] = "Not valid"
    settings.write()
    page = operator.page("/console/settings")
    assert "source.slot: must be 1 to 63" in page.text
    assert "canary" not in page.source
    assert operator.submit(APPLY, csrf=operator.csrf).status_code == 409


def test_the_last_refusal_is_shown(settings: Settings, operator: Visitor) -> None:
    settings.values["source"]["slot"] = "other"
    settings.write()
    with pytest.raises(ConfigError, match=r"source\.slot"):
        settings.reloads.reload()
    assert "The last reload was refused: a restart of" in operator.page("/console/settings").text


def test_a_viewer_sees_the_difference_and_no_button(tmp_path: Path) -> None:
    users = {"vic": {"role": "viewer", "password": HASH}}
    house = House(tmp_path / "data", http={"users": users})
    house.healthy()
    settings = Settings(house)
    settings.values["http"] = {"port": 1}
    settings.write()
    viewer = Visitor(house)
    viewer.log_in("vic", "correct horse")
    page = viewer.page("/console/settings")
    assert "An operator can apply it." in page.text
    assert viewer.get(APPLY).status_code == 403
    assert viewer.submit(APPLY, csrf=page.value("csrf")).status_code == 403
    assert order_file(house.data).read() is None


def test_an_order_needs_a_run(house: House, operator: Visitor) -> None:
    """GIVEN settings of a run that has ended THEN nothing is ordered."""
    settings = Settings(house)
    settings.values["http"] = {"port": 1}
    settings.write()
    answer = operator.submit(APPLY, csrf=operator.csrf)
    assert answer.status_code == 409
    assert "does not run" in answer.text
