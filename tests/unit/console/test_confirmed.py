"""What is confirmed is what the page has shown, whatever has happened since."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest

from tailrace.console.actions import broker as broker_actions
from tailrace.console.catalog import ACTIONS
from tailrace.control import ControlFile
from tailrace.parking.order import Orders
from tailrace.parking.parking import folder_of
from tests.unit.console.brokered import figures, show
from tests.unit.console.edited import Settings
from tests.unit.console.house import TOKEN, House, Visitor

if TYPE_CHECKING:
    from tests.unit.console.house import Html

BEARER = {"authorization": f"Bearer {TOKEN}"}
PARKED, PIPELINE = "/console/parked/shop", "/console/pipelines/shop"


def form_of(page: Html) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in page.all("input") if "name" in each}


def dry_run(visitor: Visitor, path: str, **body: Any) -> dict[str, Any]:
    """What the API would do, as the body that does it."""
    answer = visitor.ask("POST", f"/api/v1{path}?dry_run=true", content=json.dumps(body), **BEARER)
    assert answer.status_code == 200, answer.text
    return {**body, **answer.json()["resolved"]}


@pytest.mark.parametrize("action", ["retry", "drop"])
def test_messages_that_are_parked_later_are_not_meant(
    house: House, operator: Visitor, action: str
) -> None:
    """GIVEN the page of a retry or drop of all WHEN more is parked before it is confirmed THEN the
    order has the messages of the page, and so has one of the API."""
    parked = house.park()
    page = operator.page(f"{PARKED}/{action}?all=true")
    body = dry_run(operator, f"/parked/shop/{action}", all=True)
    parked.sink.bad.add("d1")
    parked.deliver([("d1", "d"), ("d2", "d")], lsn=200)
    parked.plan()
    assert operator.submit(f"{PARKED}/{action}", **form_of(page)).status_code == 303
    done = operator.ask("POST", f"/api/v1/parked/shop/{action}", content=json.dumps(body), **BEARER)
    assert done.json()["matched"] == 3
    orders = Orders(folder_of(house.data, "shop") / "orders").all()
    assert [order.selection.upto for order in orders] == [3, 3]
    assert operator.page(f"{PARKED}/{action}?all=true").value("upto") == "5"


@pytest.mark.parametrize(("action", "to"), [("skip", "now"), ("rewind", "earliest")])
def test_a_move_leads_where_the_page_says(
    house: House, operator: Visitor, action: str, to: str
) -> None:
    """GIVEN the page of a move WHEN the log grows before it is confirmed THEN the pipeline
    continues at the position of the page, and so it does for the API."""
    house.troubled()
    log = house.folder.log
    expected = {"now": log.end().position, "earliest": log.earliest()}[to]
    page = operator.page(f"{PIPELINE}/{action}?{urlencode({'to': to})}")
    body = dry_run(operator, f"/pipelines/shop/{action}", to=to)
    house.folder.append(3)
    assert log.end().position > expected
    assert operator.submit(f"{PIPELINE}/{action}", **form_of(page)).status_code == 303
    assert ControlFile(house.data, "shop").read().position == str(expected)
    done = operator.ask(
        "POST", f"/api/v1/pipelines/shop/{action}", content=json.dumps(body), **BEARER
    )
    assert done.json()["position"] == str(expected)


def test_a_settings_file_that_changes_again_is_not_applied(house: House, operator: Visitor) -> None:
    """GIVEN the page of an apply, opened without a plan, WHEN the file changes before it is
    confirmed THEN that is refused."""
    house.healthy()
    settings = Settings(house)
    settings.values["http"] = {"port": 1}
    settings.write()
    page = operator.page("/console/settings/apply")
    assert "What will happen" in page.text
    settings.values["http"] = {"port": 2}
    settings.write()
    answer = operator.submit("/console/settings/apply", **form_of(page))
    assert answer.status_code == 409
    assert "has changed since the plan was shown" in answer.text


def test_what_an_effect_fills_in_is_no_field_of_a_form(
    house: House, operator: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN all actions WHEN their pages ask for fields THEN those of `resolved` are not among
    them, and each is a field of the body."""
    show(monkeypatch, figures())
    monkeypatch.setattr(broker_actions, "session", lambda _system: pytest.fail("not asked yet"))
    house.healthy()
    for action in ACTIONS:
        assert action.body.resolved <= action.body.model_fields.keys()
        path = action.address.replace("{pipeline}", "shop")
        names = {each.get("name") for each in operator.page(path).all("input")}
        assert not names & action.body.resolved
