"""Buttons of the console on a running system: what PostgreSQL, NATS and the files show of them."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.log import retention
from tailrace.log.reader import Log
from tailrace.log.store import LocalStore
from tests.integration.console.running import ROWS
from tests.waiting import holds, wait_for

if TYPE_CHECKING:
    from tests.integration.console.running import Browser, Running

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def test_buttons(running: Running, browser: Browser) -> None:
    """GIVEN a running system WHEN its buttons are pressed THEN pipelines pause, resume, restart,
    skip and are rewound, a parked message is delivered and another dropped, rows are sent again, a
    backfill pauses, resumes and ends, a pin is gone, and the audit file has every step."""
    _pages_show_the_system(running, browser)
    _a_paused_pipeline_waits(running, browser)
    _a_parked_message_is_redriven(running, browser)
    _existing_rows_are_delivered(running, browser)
    _a_pipeline_is_rewound(running, browser)
    _a_query_starts_again(running, browser)
    _changes_are_skipped(running, browser)
    _a_parked_message_is_dropped(running, browser)
    _a_backfill_is_steered(running, browser)
    _a_reader_is_given_up(running, browser)
    entries = [json.loads(line) for line in (running.data / "audit.jsonl").read_text().splitlines()]
    assert [(each["action"], each["user"]) for each in entries] == [
        ("pipeline.pause", "http"),
        ("pipeline.resume", "http"),
        ("parked.retry", "http"),
        ("backfill.start", "http"),
        ("pipeline.rewind", "http"),
        ("pipeline.restart", "http"),
        ("pipeline.pause", "http"),
        ("pipeline.skip", "http"),
        ("pipeline.resume", "http"),
        ("parked.drop", "http"),
        ("backfill.start", "http"),
        ("backfill.pause", "http"),
        ("backfill.resume", "http"),
        ("backfill.cancel", "http"),
        ("log.unpin", "http"),
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
    holds(lambda: running.stored() == ROWS, 1)
    assert "Paused by http: maintenance" in browser.get("/console/pipelines/shop").text
    browser.press("/console/pipelines/shop/resume")
    wait_for(lambda: running.stored() == ROWS + 1, running.status)


def _a_parked_message_is_redriven(running: Running, browser: Browser) -> None:
    page = browser.get("/console/parked/hooks/1")
    assert "422" in page.text
    assert '"id":7' in page.text.replace(" ", "")
    running.refuse()
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


def _insert(running: Running, *orders: int) -> None:
    for order in orders:
        running.database.execute(f"INSERT INTO orders VALUES ({order}, 'n')")


def _a_query_starts_again(running: Running, browser: Browser) -> None:
    started = running.output.count("pipeline.restarting")
    browser.press("/console/pipelines/hooks/restart", reason="new certificate")
    wait_for(lambda: running.output.count("pipeline.restarting") > started, running.status)
    _insert(running, 100)
    wait_for(lambda: running.posted().count(100) == 1, running.status)


def _changes_are_skipped(running: Running, browser: Browser) -> None:
    browser.press("/console/pipelines/hooks/pause")
    wait_for(lambda: running.pipeline("hooks").get("state") == "paused", running.status)
    _insert(running, 200, 201)
    wait_for(lambda: running.stored() >= ROWS + 9, running.status)
    shown = browser.get("/console/pipelines/hooks/skip?to=now").text
    assert "2 changes are skipped; 0 follow." in " ".join(shown.split())
    browser.press("/console/pipelines/hooks/skip", to="now", reason="bad rows")
    browser.press("/console/pipelines/hooks/resume")
    _insert(running, 202)
    wait_for(lambda: running.posted().count(202) == 1, running.status)
    assert not {200, 201} & set(running.posted())


def _a_parked_message_is_dropped(running: Running, browser: Browser) -> None:
    running.refuse(300)
    _insert(running, 300)
    wait_for(lambda: running.pipeline("hooks").get("parked_messages") == 1, running.status)
    running.refuse()
    before = running.posted().count(300)
    browser.press("/console/parked/hooks/drop", all="true")
    wait_for(lambda: running.pipeline("hooks").get("parked_messages") == 0, running.status)
    _insert(running, 301)
    wait_for(lambda: running.posted().count(301) == 1, running.status)
    assert running.posted().count(300) == before


def _a_backfill_is_steered(running: Running, browser: Browser) -> None:
    rows = 20_000
    running.database.execute(
        "CREATE TABLE archive (id int PRIMARY KEY);"
        f"INSERT INTO archive SELECT generate_series(1, {rows});"
        "ALTER PUBLICATION tailrace ADD TABLE archive"
    )
    # All orders so far: what comes to the stream from now on is the backfill's.
    wait_for(lambda: running.stored() == ROWS + 12, running.status)
    before = running.stored()
    browser.press("/console/backfills/start", pipeline="shop", table="archive", rate="50")

    def found() -> dict[str, Any]:
        # The newest comes first.
        newest: dict[str, Any] = browser.document("/backfills")["backfills"][0]
        return newest

    def delivered() -> int:
        return running.stored() - before

    def press(action: str) -> None:
        browser.press(f"/console/backfills/{found()['id']}/{action}")

    wait_for(lambda: delivered() > 0, running.status)
    press("pause")
    wait_for(lambda: found()["state"] == "paused", found)
    wait_for(lambda: delivered() == found()["rows"], found)
    paused = delivered()
    holds(lambda: delivered() == paused, 1)
    press("resume")
    wait_for(lambda: delivered() > paused, found)
    press("cancel")
    wait_for(lambda: found()["state"] == "cancelled", found)
    wait_for(lambda: delivered() == found()["rows"], found)
    assert delivered() < rows
    assert sum(".archive." in each.subject for each in running.received()) == delivered()


def _a_reader_is_given_up(running: Running, browser: Browser) -> None:
    store = LocalStore(running.data / "log")
    retention.pin(store, "gone", Log(store).earliest(), now=time.time())
    before = set(retention.pins(store))
    browser.press("/console/log/pins/gone/unpin", reason="decommissioned")
    assert set(retention.pins(store)) == before - {"gone"}
