"""The console in Debian's Chromium: pages render, nothing is blocked or fetched from outside, axe
finds nothing serious, and a button works."""

from __future__ import annotations

import base64
import json
import os
import shutil
import time
from dataclasses import replace
from functools import partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.console.catalog import PAGES
from tailrace.control import ControlFile
from tailrace.log.store import LocalStore
from tailrace.run import status
from tests.fix_log import TestLog, insert, relation, transaction
from tests.integration.console.serving import serving
from tests.unit.console.edited import Settings
from tests.unit.console.house import CHANGE, RUNNING, TOKEN, House
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from selenium.webdriver import Chrome

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.skipif(
        not (CHROMIUM and DRIVER), reason="no chromium: apt-get install chromium chromium-driver"
    ),
    pytest.mark.timeout(600),
]
SCREENSHOTS = os.environ.get("TAILRACE_SCREENSHOTS")
"""A folder for pictures of all pages."""
_SIZES = {"light": (1280, 900), "dark": (1280, 900), "phone": (390, 800)}


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    from selenium import webdriver  # noqa: PLC0415 - only where there is a browser
    from selenium.webdriver.chrome.service import Service  # noqa: PLC0415

    options = webdriver.ChromeOptions()
    assert CHROMIUM
    options.binary_location = CHROMIUM
    profile = tmp_path_factory.mktemp("chromium")
    for argument in (
        "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        "--disable-background-networking", "--no-first-run", f"--user-data-dir={profile}",
    ):  # fmt: skip
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def chrome(chromium: Chrome) -> Chrome:
    """The browser, whose logs hold nothing of another test."""
    chromium.get("about:blank")
    requested(chromium)
    complaints(chromium)
    return chromium


def look(driver: Chrome, look: str) -> None:
    """Light or dark, wide or a phone."""
    width, height = _SIZES[look]
    scheme = {"name": "prefers-color-scheme", "value": "dark" if look == "dark" else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": look == "phone"}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def log_in(driver: Chrome, url: str) -> None:
    from selenium.webdriver.common.by import By  # noqa: PLC0415

    driver.get(f"{url}/login")
    driver.find_element(By.NAME, "secret").send_keys(TOKEN)
    driver.find_element(By.CSS_SELECTOR, "main button").click()
    wait_for(lambda: "Log out" in driver.page_source)


def requested(driver: Any) -> set[str]:
    """The addresses that pages have requested since the last call."""
    found = set()
    for entry in driver.get_log("performance"):
        message: Any = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            found.add(message["params"]["request"]["url"])
    return found


def complaints(driver: Any) -> list[str]:
    """What the browser has blocked or failed at."""
    return [str(each["message"]) for each in driver.get_log("browser")]


def serious(driver: Chrome) -> list[str]:
    """What axe finds that keeps people from using a page."""
    axe = resources.files("axe_core_python").joinpath("axe.min.js").read_text()
    driver.execute_script(axe)
    found: Any = driver.execute_async_script(
        "const done = arguments[0]; axe.run({resultTypes: ['violations']}).then(done)"
    )
    return [
        f"{each['id']}: {node['html']}"
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]


def keep(driver: Chrome, name: str) -> None:
    if SCREENSHOTS:
        Path(SCREENSHOTS).mkdir(parents=True, exist_ok=True)
        size = driver.execute_script(
            "const e = document.documentElement; return [e.clientWidth, e.scrollHeight]"
        )
        clip = {"x": 0, "y": 0, "width": size[0], "height": min(size[1], 3000), "scale": 1}
        picture = driver.execute_cdp_cmd(
            "Page.captureScreenshot", {"clip": clip, "captureBeyondViewport": True}
        )
        (Path(SCREENSHOTS) / f"{name}.png").write_bytes(base64.b64decode(picture["data"]))


@pytest.fixture(params=["healthy", "trouble"])
def house(request: pytest.FixtureRequest, tmp_path: Path) -> House:
    made = House(tmp_path / "data", replication={"followers": ["127.0.0.1:7432"], "mode": "sync"})
    made.park()
    edited = Settings(made)
    edited.values["pipelines"]["shop"]["where"] = "after.total > 100 AND after.note <> ''"
    if request.param == "healthy":
        made.healthy()
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


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Status files that are not written again stay valid while a page is open."""
    monkeypatch.setattr(status, "STALE_S", 3600.0)


@pytest.mark.parametrize("appearance", list(_SIZES))
def test_pages_render(
    chrome: Chrome, house: House, appearance: str, request: pytest.FixtureRequest
) -> None:
    """GIVEN a system, healthy or in trouble, WHEN every page is opened THEN the browser blocks and
    fetches nothing else, nothing is wider than the window, and axe finds nothing serious."""
    state = "trouble" if house.failing else "healthy"
    with serving(house) as url:
        look(chrome, appearance)
        log_in(chrome, url)
        for page in PAGES:
            if page.name in ("tables", "doctor"):
                continue
            path = page.address.replace("{pipeline}", "shop").replace("{number}", "1")
            path = path.replace("{message}", CHANGE)
            chrome.get(f"{url}{path}")
            assert chrome.find_elements("css selector", "main h1"), path
            wide = "return document.documentElement.scrollWidth <= window.innerWidth"
            assert chrome.execute_script(wide), path
            assert serious(chrome) == [], path
            keep(chrome, f"{page.name}-{state}-{appearance}")
        chrome.get(f"{url}/console/pipelines/shop/rewind?to=earliest")
        assert serious(chrome) == []
        keep(chrome, f"rewind-{state}-{appearance}")
        chrome.get("about:blank")
        assert complaints(chrome) == []
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
        log_in(chrome, url)
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


def test_pages_work_without_a_script(chrome: Chrome, tmp_path: Path) -> None:
    """GIVEN a browser without JavaScript WHEN a pipeline is paused THEN it is."""
    house = House(tmp_path / "data")
    house.healthy()
    with serving(house) as url:
        log_in(chrome, url)
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
        log_in(chrome, url)
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
