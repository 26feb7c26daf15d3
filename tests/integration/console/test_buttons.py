"""Buttons of the console on a running system: what PostgreSQL, NATS and the files show of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.integration.console.running import ROWS
from tests.waiting import holds, wait_for

if TYPE_CHECKING:
    from tests.integration.console.running import Browser, Running

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def test_buttons(running: Running, browser: Browser) -> None:
    """GIVEN a running system WHEN its buttons are pressed THEN pipelines pause and resume, a parked
    message is delivered, rows are sent again, and the audit file has every step."""
    _pages_show_the_system(running, browser)
    _a_paused_pipeline_waits(running, browser)
    _a_parked_message_is_redriven(running, browser)
    _existing_rows_are_delivered(running, browser)
    _a_pipeline_is_rewound(running, browser)
    entries = [json.loads(line) for line in (running.data / "audit.jsonl").read_text().splitlines()]
    assert [(each["action"], each["user"]) for each in entries] == [
        ("pipeline.pause", "http"),
        ("pipeline.resume", "http"),
        ("parked.retry", "http"),
        ("backfill.start", "http"),
        ("pipeline.rewind", "http"),
    ]


def _pages_show_the_system(running: Running, browser: Browser) -> None:
    wait_for(lambda: running.pipeline("hooks").get("parked_messages") == 1, "order 7 is parked")
    text = browser.get("/").text
    assert "Pipeline hooks: 1 messages are parked" in text
    tables = browser.get("/console/tables").text
    assert "public.orders" in tables
    assert "primary key" in tables
    assert "checks" in browser.get("/console/doctor").text
    log = browser.get("/console/log").text
    assert "0000000001-" in log
    assert "shop" in log


def _a_paused_pipeline_waits(running: Running, browser: Browser) -> None:
    browser.press("/console/pipelines/shop/pause", reason="maintenance")
    wait_for(lambda: running.pipeline("shop").get("state") == "paused", running.status)
    running.database.execute(f"INSERT INTO orders VALUES ({ROWS + 1}, 'later')")
    wait_for(lambda: running.events("hooks") >= ROWS, running.status)
    holds(lambda: len(running.received()) == ROWS, 1)
    assert "Paused by http: maintenance" in browser.get("/console/pipelines/shop").text
    browser.press("/console/pipelines/shop/resume")
    wait_for(lambda: len(running.received()) == ROWS + 1, running.status)


def _a_parked_message_is_redriven(running: Running, browser: Browser) -> None:
    page = browser.get("/console/parked/hooks/1")
    assert "422" in page.text
    assert '"id":7' in page.text.replace(" ", "")
    running.mend_the_receiver()
    before = running.posted().count(7)
    browser.press("/console/parked/hooks/retry", all="true")
    wait_for(lambda: running.pipeline("hooks").get("parked_messages") == 0, running.status)
    assert running.posted().count(7) == before + 1


def _existing_rows_are_delivered(running: Running, browser: Browser) -> None:
    browser.press("/console/backfills/start", pipeline="shop", table="orders", where="id <= 5")

    def read() -> int:
        return sum(each.subject.endswith(".read") for each in running.received())

    wait_for(lambda: read() == 5, running.status)
    wait_for(lambda: "complete" in browser.get("/console/backfills").text)


def _a_pipeline_is_rewound(running: Running, browser: Browser) -> None:
    before = len(running.posted())
    shown = browser.get("/console/pipelines/hooks/rewind?to=earliest").text
    assert f"{ROWS + 1} changes are delivered again" in shown
    browser.press("/console/pipelines/hooks/rewind", to="earliest", reason="new index")
    wait_for(lambda: len(running.posted()) >= before + ROWS + 1, running.status)
