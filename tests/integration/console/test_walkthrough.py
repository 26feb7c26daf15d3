"""The tutorial of the console: its files, commands and clicks, one after another."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from selenium.webdriver.common.by import By

from tailrace.testing.process import free_port
from tests import command
from tests.integration.console.chromium import NEEDED, complaints, log_in, look, save, serious
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from selenium.webdriver import Chrome

    from tests.fix_postgres import Database

pytestmark = [NEEDED, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(600)]
TUTORIAL = Path(__file__).parents[3] / "docs/tutorial/console.md"
PICTURES = os.environ.get("TAILRACE_PICTURES")
"""A folder for the pictures of the tutorial: docs/tutorial, to take them again."""


def blocks(language: str) -> list[str]:
    """The tutorial's blocks of one language."""
    return re.findall(
        rf"^```{language}\n(.*?)^```$", TUTORIAL.read_text(), re.MULTILINE | re.DOTALL
    )


class Walk:
    """A folder in which the tutorial is followed."""

    def __init__(self, folder: Path, database: Database, chrome: Chrome) -> None:
        self._folder, self._database, self._chrome = folder, database, chrome
        self._statements = iter(blocks("sql"))
        self._url = f"http://127.0.0.1:{free_port()}"
        port = str(free_port())
        [program], [settings] = blocks("python"), blocks("yaml")
        (folder / "receiver.py").write_text(program.replace("8099", port))
        read = yaml.safe_load(settings.replace("8099", port))
        slot = "tailrace" if PICTURES else database.name[-63:]
        read["source"] = {"dsn": database.dsn, "slot": slot}
        read["http"] = {"port": int(self._url.rpartition(":")[2])}
        (folder / "tailrace.yml").write_text(yaml.safe_dump(read))

    def execute(self) -> None:
        """The next block of SQL."""
        self._database.execute(next(self._statements))

    @contextmanager
    def receiver(self, *arguments: str) -> Iterator[None]:
        """`python receiver.py`."""
        with (self._folder / "orders").open("ab") as output:
            running = subprocess.Popen(
                [sys.executable, "receiver.py", *arguments], cwd=self._folder, stdout=output
            )
            try:
                yield
            finally:
                running.terminate()
                running.wait()

    def printed(self) -> list[str]:
        """What the receiver has printed."""
        return (self._folder / "orders").read_text().splitlines()

    def log_in(self) -> None:
        log_in(self._chrome, self._url, (self._folder / "data/http.token").read_text().strip())

    def open(self, name: str) -> None:
        """Follow a link of the menu or of the page."""
        self._chrome.find_element(By.LINK_TEXT, name).click()

    def press(self, name: str) -> None:
        self._chrome.find_element(By.XPATH, f"//main//button[text()='{name}']").click()

    def wait_for(self, text: str) -> None:
        """Until a page that is open says this, which it does by itself."""

        def main() -> str:
            return self._chrome.find_element(By.ID, "main").text

        wait_for(lambda: text in main(), main)

    def picture(self, name: str) -> None:
        """The tutorial shows the page as it is now."""
        assert f"({name}.png)" in TUTORIAL.read_text()
        assert serious(self._chrome) == []
        if PICTURES:
            save(self._chrome, Path(PICTURES) / f"{name}.png")


def test_the_tutorial(tmp_path: Path, database: Database, chrome: Chrome) -> None:
    look(chrome, "light")
    walk = Walk(tmp_path, database, chrome)
    walk.execute()
    started = command.run("init", "--table", "orders", folder=tmp_path)
    assert started.returncode == 0, started.stderr
    # Spark has Unix sockets in its temporary folder, so the path must be short.
    with (
        tempfile.TemporaryDirectory(prefix="tr-") as short,
        command.Service(
            "run", folder=tmp_path, env={"TMPDIR": short, "SPARK_LOCAL_DIRS": short}
        ) as running,
    ):
        running.start()
        with walk.receiver():
            running.wait_until((tmp_path / "data/http.token").exists)
            running.wait_until(lambda: _serves(walk))
            walk.wait_for("running, 0/s")
            walk.execute()
            running.wait_until(lambda: "order 3" in walk.printed())
            walk.wait_for("Everything is well")
            walk.wait_for("lag 0 s")
            walk.picture("console-overview")
            walk.execute()
            running.wait_until(lambda: "order 5" in walk.printed())
            walk.wait_for("Pipeline hooks: 1 messages are parked")
            walk.picture("console-trouble")
            walk.open("Parked")
            walk.open("hooks")
            walk.open("1")
            walk.wait_for("an order needs a customer")
            walk.picture("console-parked")
        with walk.receiver("all"):
            walk.open("Retry")
            walk.picture("console-retry")
            walk.press("Retry parked messages")
            running.wait_until(lambda: "order 4" in walk.printed())
            walk.open("Parked")
            walk.open("hooks")
            walk.wait_for("No message is parked")
            walk.picture("console-empty")
            walk.open("Audit")
            walk.wait_for("parked.retry")
            assert complaints(chrome) == []
        running.stop()
    assert walk.printed() == ["order 3", "order 5", "order 4"]


def _serves(walk: Walk) -> bool:
    from selenium.common.exceptions import WebDriverException  # noqa: PLC0415

    try:
        walk.log_in()
    except WebDriverException:
        return False
    return True
