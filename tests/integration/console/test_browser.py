"""The console in Debian's Chromium: pages render, nothing is blocked or fetched from outside, axe
finds nothing serious, and a button works."""

from __future__ import annotations

import os
import time
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tailrace.console.catalog import PAGES
from tailrace.console.views import source
from tailrace.control import ControlFile
from tailrace.finding import warning
from tailrace.log.store import LocalStore
from tailrace.run import status
from tests.fix_log import TestLog, insert, relation, transaction
from tests.integration.console.chromium import (
    NEEDED,
    SIZES,
    complaints,
    log_in,
    look,
    requested,
    save,
    serious,
)
from tests.integration.console.serving import serving
from tests.unit.console import brokered
from tests.unit.console.edited import Settings
from tests.unit.console.house import CHANGE, PASSWORD, RUNNING, TOKEN, USERS, House
from tests.waiting import wait_for

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

pytestmark = [NEEDED, pytest.mark.timeout(600)]
SCREENSHOTS = os.environ.get("TAILRACE_SCREENSHOTS")
"""A folder for pictures of all pages."""


def _keep(driver: Chrome, name: str) -> None:
    if SCREENSHOTS:
        save(driver, Path(SCREENSHOTS) / f"{name}.png")


@pytest.fixture(params=["healthy", "trouble"])
def house(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> House:
    made = House(tmp_path / "data", replication={"followers": ["127.0.0.1:7432"], "mode": "sync"})
    made.park()
    edited = Settings(made)
    edited.values["pipelines"]["shop"]["where"] = "after.total > 100 AND after.note <> ''"
    if request.param == "healthy":
        made.healthy()
        brokered.show(monkeypatch, brokered.figures())
        _show_source(monkeypatch)
    else:
        made.troubled()
        edited.values["source"] = {"slot": "another"}
    edited.write()
    trends, start = made.console._trends, time.time() - 600
    for at in range(60):
        trends._clock = partial(float, start + 10 * at)
        trends.sample()
    trends._clock = time.time
    return made


def _show_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source with a table, and a finding. Without this, it does not answer."""
    table = {
        "namespace": "public", "name": "orders", "rows": 12, "bytes": 8192,
        "columns": ["id int4", "note text"], "replica_identity": "primary key",
    }  # fmt: skip
    monkeypatch.setattr(source, "session", lambda _system: nullcontext())
    monkeypatch.setattr(source, "read_tables", lambda *_: [table])
    monkeypatch.setattr(source, "run", lambda *_: [warning("a table is large", "VACUUM", "orders")])


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Status files that are not written again stay valid while a page is open."""
    monkeypatch.setattr(status, "STALE_S", 3600.0)


@pytest.mark.parametrize("appearance", list(SIZES))
def test_pages_render(
    chrome: Chrome, house: House, appearance: str, request: pytest.FixtureRequest
) -> None:
    """GIVEN a system, healthy or in trouble, WHEN every page is opened THEN the browser blocks and
    fetches nothing else, nothing is wider than the window, and axe finds nothing serious."""
    state = "trouble" if house.failing else "healthy"
    with serving(house) as url:
        look(chrome, appearance)
        chrome.get(f"{url}/login")
        assert serious(chrome) == []
        _keep(chrome, f"login-{state}-{appearance}")
        log_in(chrome, url, TOKEN)
        errors = ["/console/pipelines/none"]
        wide = "return document.documentElement.scrollWidth <= window.innerWidth"
        for page in PAGES:
            if state == "trouble" and page.name in ("tables", "doctor"):
                errors.append(page.address)
                continue
            path = page.address.replace("{pipeline}", "shop").replace("{number}", "1")
            path = path.replace("{message}", CHANGE)
            chrome.get(f"{url}{path}")
            assert chrome.find_elements("css selector", "main h1"), path
            assert chrome.execute_script(wide), path
            assert serious(chrome) == [], path
            _keep(chrome, f"{page.name}-{state}-{appearance}")
        chrome.get(f"{url}/console/pipelines/shop/rewind?to=earliest")
        assert serious(chrome) == []
        _keep(chrome, f"rewind-{state}-{appearance}")
        chrome.get("about:blank")
        assert complaints(chrome) == []
        for path in errors:
            chrome.get(f"{url}{path}")
            assert chrome.find_element("css selector", "main h1").text.startswith("Error ")
            assert chrome.execute_script(wide), path
            assert serious(chrome) == [], path
            _keep(chrome, f"error-{path.rpartition('/')[2]}-{state}-{appearance}")
        chrome.get("about:blank")
        assert all("the server responded with a status of" in each for each in complaints(chrome))
        own = (url, "about:", "chrome:", "data:")
        assert [each for each in requested(chrome) if not each.startswith(own)] == []


def test_a_page_follows_the_system_and_a_button_works(chrome: Chrome, tmp_path: Path) -> None:
    """GIVEN an open overview WHEN the system gets into trouble THEN the page says so by itself; and
    WHEN a pipeline is paused with the keyboard alone THEN the control file has it."""
    from selenium.webdriver.common.keys import Keys  # noqa: PLC0415

    house = House(tmp_path / "data")
    house.healthy()
    with serving(house) as url:
        look(chrome, "light")
        log_in(chrome, url, TOKEN)
        wait_for(lambda: "Everything is well" in chrome.page_source)
        house.write(replace(RUNNING, state="failed", code="POISONED"))
        wait_for(lambda: "POISONED" in chrome.page_source, "the page is refreshed")
        chrome.get(f"{url}/console/pipelines/shop")
        link = chrome.find_element("link text", "Pause")
        link.send_keys(Keys.ENTER)
        reason = wait_for(lambda: chrome.find_elements("name", "reason"))[0]
        reason.send_keys("by keyboard", Keys.ENTER)
        wait_for(lambda: ControlFile(house.data, "shop").read().paused)
        wait_for(lambda: "by keyboard" in chrome.page_source)
        chrome.get("about:blank")
        assert complaints(chrome) == []


def test_a_page_that_is_not_refreshed_says_so(chrome: Chrome, tmp_path: Path) -> None:
    """GIVEN an open overview of a healthy system WHEN its server stops THEN the page says that it
    is old; and WHEN a server without its session answers again THEN the browser is at the login."""
    house = House(tmp_path / "data", http={"users": USERS})
    house.healthy()
    with serving(house) as url:
        look(chrome, "light")
        log_in(chrome, url, PASSWORD, name="ann")
        wait_for(lambda: "Everything is well" in chrome.page_source)
        wait_for(lambda: chrome.find_element("id", "freshness").text == "live")
        assert not chrome.find_element("id", "stale").text
        port = int(url.rpartition(":")[2])
    wait_for(lambda: "Not connected since" in chrome.find_element("id", "stale").text)
    assert chrome.find_elements("css selector", "main.stale #live")
    assert serious(chrome) == []
    again = House(tmp_path / "again", http={"users": USERS})
    with serving(again, port=port):
        wait_for(lambda: "Password" in chrome.page_source)
        assert "Everything is well" not in chrome.page_source
        chrome.get("about:blank")


def test_a_page_whose_session_has_ended_leads_to_the_login(chrome: Chrome, tmp_path: Path) -> None:
    """GIVEN an open overview WHEN its session ends THEN the browser is soon at the login."""
    house = House(tmp_path / "data", http={"users": USERS})
    house.healthy()
    with serving(house) as url:
        look(chrome, "light")
        log_in(chrome, url, PASSWORD, name="ann")
        wait_for(lambda: chrome.find_element("id", "freshness").text == "live")
        [cookie] = chrome.get_cookies()
        house.access.sessions.end(cookie["value"])
        wait_for(lambda: "Password" in chrome.page_source)
        chrome.get("about:blank")


def test_pages_work_without_a_script(chrome: Chrome, tmp_path: Path) -> None:
    """GIVEN a browser without JavaScript WHEN a pipeline is paused THEN it is."""
    house = House(tmp_path / "data")
    house.healthy()
    with serving(house) as url:
        log_in(chrome, url, TOKEN)
        chrome.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
        try:
            chrome.get(f"{url}/console/pipelines/shop/pause")
            chrome.find_element("css selector", "main button").click()
            wait_for(lambda: ControlFile(house.data, "shop").read().paused)
        finally:
            chrome.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_messages_follow_the_log(chrome: Chrome, tmp_path: Path) -> None:
    """GIVEN the open page Messages WHEN capture appends a change THEN it appears by itself; and
    WHEN a filter is used THEN the page shows it alone, with a link to its trace."""
    own = tmp_path / "own"
    written = TestLog(LocalStore(own, create=True))  # type: ignore[arg-type]
    written.append_all(transaction(number) for number in range(3))
    house = House(tmp_path / "data", log={"path": str(own)})
    house.healthy()
    with serving(house) as url:
        look(chrome, "light")
        log_in(chrome, url, TOKEN)
        chrome.get(f"{url}/console/messages")
        assert chrome.page_source.count("/console/messages/0000") == 6
        written.append(transaction(7, insert(relation(1), 777, "just-now")))
        wait_for(lambda: "just-now" in chrome.page_source, "the page follows the log")
        chrome.find_element("name", "key").send_keys("777")
        chrome.find_element("css selector", ".filter button").click()
        wait_for(lambda: chrome.page_source.count("/console/messages/0000") == 1)
        chrome.find_element("css selector", "tbody a").click()
        wait_for(lambda: "Deliveries" in chrome.page_source)
        assert "just-now" in chrome.page_source
        chrome.get("about:blank")
        assert complaints(chrome) == []
