"""Every button: what it says before, what it does, and what the audit file has of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.backfill import queue
from tailrace.backfill.order import Record
from tailrace.console.catalog import ACTIONS
from tailrace.control import ControlFile
from tailrace.parking.order import Orders
from tailrace.parking.parking import folder_of
from tests.unit.console.house import House, Visitor

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.console.house import Html

PIPELINE = "/console/pipelines/shop"


def entries(house: House) -> list[dict[str, Any]]:
    return [json.loads(line) for line in house.audit().splitlines()]


def lines(page: Html) -> str:
    return " ".join(page.text.split())


@pytest.mark.parametrize("action", ["pause", "resume", "restart"])
def test_a_pipeline_is_steered(house: House, operator: Visitor, action: str) -> None:
    """GIVEN a running pipeline WHEN a button is pressed and confirmed THEN the control file has it,
    and the audit file who, what and why."""
    house.healthy()
    page = operator.page(f"{PIPELINE}/{action}")
    assert "What will happen" in page.text
    before = ControlFile(house.data, "shop").read()
    answer = operator.do(f"{PIPELINE}/{action}", reason="maintenance")
    assert answer.status_code == 303
    assert answer.headers["location"] == PIPELINE
    control = ControlFile(house.data, "shop").read()
    assert control.paused == (action == "pause")
    assert control.restarts - before.restarts == (action == "restart")
    assert (control.user, control.reason) == ("http", "maintenance")
    (entry,) = entries(house)
    assert entry | {"action": f"pipeline.{action}", "user": "http", "pipeline": "shop"} == entry
    assert "maintenance" in operator.page(PIPELINE).text


def test_a_rewind_shows_what_is_delivered_again(house: House, operator: Visitor) -> None:
    """GIVEN a pipeline that has delivered all WHEN a rewind is asked for THEN the page counts the
    changes before anything is ordered, and the button orders it."""
    house.healthy()
    assert "Show the effect" in operator.page(f"{PIPELINE}/rewind").text
    page = operator.page(f"{PIPELINE}/rewind?to=earliest")
    assert "12 changes are delivered again; 12 follow." in lines(page)
    assert ControlFile(house.data, "shop").read().moves == 0
    assert operator.do(f"{PIPELINE}/rewind", to="earliest", reason="new index").status_code == 303
    control = ControlFile(house.data, "shop").read()
    assert (control.moves, control.position) == (1, str(house.folder.log.earliest()))
    assert entries(house)[0]["action"] == "pipeline.rewind"


def test_a_skip(house: House, operator: Visitor) -> None:
    house.troubled()
    page = operator.page(f"{PIPELINE}/skip?to=now")
    assert "6 changes are skipped; 0 follow." in lines(page)
    assert "never reach the sink" in page.text
    assert operator.do(f"{PIPELINE}/skip", to="now").status_code == 303
    end = house.folder.log.end().position
    assert ControlFile(house.data, "shop").read().position == str(end)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/rewind?to=nonsense", "nonsense"),
        ("/rewind?to=" + "x" * 200, "to: "),
        ("/skip?to=earliest", "is past"),
        ("/rewind?to=ffffffffffffffff-0", "the log ends at"),
    ],
)
def test_what_is_not_possible_is_said_before(
    house: House, operator: Visitor, path: str, reason: str
) -> None:
    house.healthy()
    page = operator.page(f"{PIPELINE}{path}")
    assert "This is not possible" in page.text
    assert reason in page.text
    answer = operator.submit(
        f"{PIPELINE}{path.partition('?')[0]}", csrf=operator.csrf, to=path.partition("=")[2]
    )
    assert answer.status_code in (400, 409)
    assert reason in answer.text
    assert ControlFile(house.data, "shop").read().moves == 0


def test_parked_messages_are_retried_and_dropped(house: House, operator: Visitor) -> None:
    """GIVEN parked messages WHEN those of a code are retried and one is dropped THEN the orders
    have them, and the audit file the user."""
    house.park()
    listed = operator.page("/console/parked/shop?code=HTTP_422")
    assert "2 of 3 parked messages" in listed.text
    assert (
        "2 messages are sent again."
        in operator.page("/console/parked/shop/retry?code=HTTP_422").text
    )
    assert operator.do("/console/parked/shop/retry", code="HTTP_422").status_code == 303
    assert operator.do("/console/parked/shop/drop", id="a2").status_code == 303
    orders = Orders(folder_of(house.data, "shop") / "orders").all()
    assert sorted(order.action for order in orders) == ["drop", "retry"]
    found = [(each["action"], each["user"], each["matched"]) for each in entries(house)]
    assert found == [("parked.retry", "http", 2), ("parked.drop", "http", 1)]
    page = operator.page("/console/parked/shop/1")
    assert "payload of a1" in page.text


def test_nothing_that_matches_is_no_order(house: House, operator: Visitor) -> None:
    house.park()
    page = operator.page("/console/parked/shop/drop?code=NONE")
    assert "no parked message matches" in page.text
    empty = operator.submit("/console/parked/shop/drop", csrf=operator.csrf)
    assert empty.status_code == 400
    assert "or else all" in empty.text
    assert not house.audit()


def test_a_backfill_is_started_paused_and_cancelled(house: House, operator: Visitor) -> None:
    house.healthy()
    fields = {"pipeline": "shop", "table": "public.orders", "where": "id > 5", "rate": "100"}
    page = operator.page("/console/backfills/start?pipeline=shop&table=public.orders")
    assert "all existing rows of public.orders" in page.text
    assert operator.do("/console/backfills/start", **fields).status_code == 303
    (listed,) = queue.list_backfills(house.config)
    assert (listed["table"], listed["where"], listed["rate"]) == ("public.orders", "id > 5", 100)
    assert listed["id"] in operator.page("/console/backfills").text
    for action in ("pause", "resume", "cancel"):
        assert operator.do(f"/console/backfills/{listed['id']}/{action}").status_code == 303
        (changed,) = queue.list_backfills(house.config)
        assert changed["desired_state"] == {"resume": "run"}.get(action, action)
    assert [each["action"] for each in entries(house)] == [
        "backfill.start", "backfill.pause", "backfill.resume", "backfill.cancel",
    ]  # fmt: skip
    bad = operator.page("/console/backfills/start?pipeline=shop&table=t&where=pg_sleep(9)")
    assert "This is not possible" in bad.text


def test_every_action_needs_a_confirmation(house: House, operator: Visitor) -> None:
    """GIVEN all actions WHEN their pages are only loaded THEN nothing is ordered."""
    house.healthy()
    house.park()
    for action in ACTIONS:
        path = action.address.replace("{pipeline}", "shop").replace("{id}", "fill-1")
        query = "?to=earliest&all=true&pipeline=shop&table=t&group=g"
        assert operator.get(f"{path}{query}").status_code == 200
    assert not house.audit()
    assert not (house.data / "control").exists()


def test_a_second_start_of_a_backfill_says_that_there_is_one(
    house: House, operator: Visitor
) -> None:
    """GIVEN a backfill that has not finished WHEN the same rows are asked for with another rate
    THEN the page says which one reads them, and how fast, or that it is paused."""
    house.healthy()
    fields = {"pipeline": "shop", "table": "public.orders"}
    assert operator.do("/console/backfills/start", **fields, rate="5").status_code == 303
    (first,) = queue.list_backfills(house.config)
    page = operator.page("/console/backfills/start?pipeline=shop&table=orders&rate=100")
    assert f"{first['id']} reads these rows" in lines(page)
    assert "at most 5 rows per second" in lines(page)
    assert operator.do(f"/console/backfills/{first['id']}/pause").status_code == 303
    page = operator.page("/console/backfills/start?pipeline=shop&table=orders&rate=100")
    assert "It is paused" in lines(page)
    assert operator.do("/console/backfills/start", **fields, rate="100").status_code == 303
    assert len(queue.list_backfills(house.config)) == 1
    assert [each["action"] for each in entries(house)] == ["backfill.start", "backfill.pause"]


def test_a_backfill_that_is_not_possible_is_said_before(tmp_path: Path) -> None:
    """GIVEN a table that the pipeline does not select, and a backfill that has finished, WHEN the
    pages of their buttons are loaded THEN they say what the buttons would refuse."""
    sink = {"type": "nats", "url": "nats://127.0.0.1:1"}
    house = House(tmp_path, pipelines={"shop": {"tables": ["public.orders"], "sink": sink}})
    operator = Visitor(house)
    operator.log_in()
    page = operator.page("/console/backfills/start?pipeline=shop&table=private.items")
    assert "private.items is not among the tables of pipeline shop" in page.text
    order = queue.submit(house.config, "shop", "orders", user="ann")
    record = Record(id=order.id, table=order.table)
    record.state = "complete"
    record.save(queue.folder_of(house.config, "shop"))
    for action in ("pause", "resume", "cancel"):
        page = operator.page(f"/console/backfills/{order.id}/{action}")
        assert "This is not possible" in page.text
        assert "has already finished: its state is complete" in page.text
