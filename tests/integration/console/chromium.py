"""Debian's Chromium without a screen: what a page requests, what the browser says, how it looks."""

from __future__ import annotations

import base64
import json
import shutil
from importlib import resources
from typing import TYPE_CHECKING, Any

import pytest

from tests.waiting import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from selenium.webdriver import Chrome

_CHROMIUM, _DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
NEEDED = pytest.mark.skipif(
    not (_CHROMIUM and _DRIVER), reason="no chromium: apt-get install chromium chromium-driver"
)
SIZES = {"light": (1280, 900), "dark": (1280, 900), "phone": (390, 800)}


def start(profile: Path) -> Chrome:
    """A browser; the caller quits it."""
    from selenium import webdriver  # noqa: PLC0415 - only where there is a browser
    from selenium.webdriver.chrome.service import Service  # noqa: PLC0415

    options = webdriver.ChromeOptions()
    assert _CHROMIUM
    options.binary_location = _CHROMIUM
    for argument in (
        "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        "--disable-background-networking", "--no-first-run", f"--user-data-dir={profile}",
    ):  # fmt: skip
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options=options, service=Service(_DRIVER))


def look(driver: Chrome, look: str) -> None:
    """Light or dark, wide or a phone."""
    width, height = SIZES[look]
    scheme = {"name": "prefers-color-scheme", "value": "dark" if look == "dark" else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": look == "phone"}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def log_in(driver: Chrome, url: str, secret: str, *, name: str = "") -> None:
    from selenium.webdriver.common.by import By  # noqa: PLC0415

    driver.get(f"{url}/login")
    if name:
        driver.find_element(By.NAME, "name").send_keys(name)
    driver.find_element(By.NAME, "secret").send_keys(secret)
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


def save(driver: Chrome, file: Path) -> None:
    """A picture of the page."""
    file.parent.mkdir(parents=True, exist_ok=True)
    size = driver.execute_script(
        "const e = document.documentElement; return [e.clientWidth, e.scrollHeight]"
    )
    clip = {"x": 0, "y": 0, "width": size[0], "height": min(size[1], 3000), "scale": 1}
    picture = driver.execute_cdp_cmd(
        "Page.captureScreenshot", {"clip": clip, "captureBeyondViewport": True}
    )
    file.write_bytes(base64.b64decode(picture["data"]))
